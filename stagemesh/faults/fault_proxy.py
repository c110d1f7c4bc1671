"""Owns a TCP proxy that spoils what passes: for trying what a mesh does when its network is bad.

It stands between two processes and knows nothing of what they say. Faults hold for both directions
of every connection, and can be changed while bytes pass. What it holds of a connection is one piece
each way.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from runtime.addresses import split_address
from runtime.errors import InvalidRequestError
from runtime.rpc import channels

PIECE_BYTES = 1 << 16


class OneShotFault(StrEnum):
    """What happens once, to the piece with which so many bytes have passed."""

    # The connection is reset, and the piece is lost.
    DROP = "drop"
    # Half of the piece passes, and then the connection ends as if it were complete.
    TRUNCATE = "truncate"
    # One bit of the piece is another.
    CORRUPT = "corrupt"
    # The piece passes twice.
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Faults:
    """What is done to what passes.

    `delay_seconds` is what each piece waits, and `bytes_per_second` what passes in one direction
    of one connection. A stall lets nothing pass, and closes nothing. `accidents` happen once each,
    when so many bytes have passed since the faults were set, over all connections.
    """

    delay_seconds: float = 0.0
    bytes_per_second: float | None = None
    is_stalled: bool = False
    accidents: tuple[tuple[int, OneShotFault], ...] = ()


NO_FAULTS = Faults()

ServeFn = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


@asynccontextmanager
async def accepting(address: str, serve: ServeFn) -> AsyncIterator[str]:
    """Gives `serve` every connection to HOST:PORT, and yields what that is bound to.

    At the end no connection is left. Raises `PortTakenError`.
    """
    listener = await channels.open_socket(address)
    async with asyncio.TaskGroup() as tasks:
        serving: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = tasks.create_task(serve(reader, writer))
            serving.add(task)
            task.add_done_callback(serving.discard)

        server = await asyncio.start_server(accept, sock=listener, limit=PIECE_BYTES)
        async with server:
            host = address.rpartition(":")[0]
            yield f"{host}:{listener.getsockname()[1]}"
        for task in serving:
            task.cancel()


class FaultProxy:
    """The way to HOST:PORT; `listening` also makes the listener that leads onto it."""

    def __init__(self, to: str) -> None:
        self.num_connections = 0
        self.num_bytes = 0
        self._host, self._port = split_address(to)
        self._faults = NO_FAULTS
        self._num_bytes_at_set = 0
        self._changed = asyncio.Event()
        self._passed = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def listening(cls, address: str, to: str) -> AsyncIterator[tuple[Self, str]]:
        """The proxy and the HOST:PORT that it is bound to; at the end no connection is left.

        Raises `PortTakenError`.
        """
        proxy = cls(to)
        async with accepting(address, proxy.serve) as bound:
            yield proxy, bound

    def set(self, faults: Faults) -> None:
        """These from now on, instead of those before."""
        self._faults = faults
        self._num_bytes_at_set = self.num_bytes
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_bytes(self, num_bytes: int) -> None:
        """Returns once `num_bytes` have passed since the faults were set."""
        while self.num_bytes - self._num_bytes_at_set < num_bytes:
            self._passed.clear()
            await self._passed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, with its other half; ends both when one does."""
        self.num_connections += 1
        writers = [writer]
        try:
            there, towards = await asyncio.open_connection(
                self._host, self._port, limit=PIECE_BYTES
            )
            writers.append(towards)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, towards))
                pumps.create_task(self._pump(there, writer))
        except* (OSError, _CutError):
            pass
        finally:
            for each in writers:
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=PIECE_BYTES)
        while piece := await reader.read(PIECE_BYTES):
            await self._hold(len(piece))
            self.num_bytes += len(piece)
            self._passed.set()
            for accident in self._accidents_of(piece):
                piece = await _spoil(piece, accident, writer)
            writer.write(piece)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()

    async def _hold(self, num_bytes: int) -> None:
        """As long as a piece has to wait; a change of faults begins it anew."""
        while True:
            faults, changed = self._faults, self._changed
            wait = faults.delay_seconds
            if faults.bytes_per_second is not None:
                wait += num_bytes / faults.bytes_per_second
            if not faults.is_stalled and not wait:
                return
            try:
                async with asyncio.timeout(None if faults.is_stalled else wait):
                    await changed.wait()
            except TimeoutError:
                return

    def _accidents_of(self, piece: bytes) -> list[OneShotFault]:
        """What is due with this piece, and then no more."""
        num_passed = self.num_bytes - self._num_bytes_at_set
        due = [each for each in self._faults.accidents if each[0] <= num_passed]
        if due:
            left = tuple(each for each in self._faults.accidents if each not in due)
            self._faults = replace(self._faults, accidents=left)
        return [accident for _, accident in due]


class _CutError(Exception):
    """Raised when a connection is to end now."""


async def _spoil(piece: bytes, accident: OneShotFault, writer: asyncio.StreamWriter) -> bytes:
    """What passes of `piece`; raises `_CutError` when the connection ends with it."""
    match accident:
        case OneShotFault.DROP:
            raise _CutError
        case OneShotFault.TRUNCATE:
            writer.write(piece[: len(piece) // 2])
            writer.write_eof()
            await writer.drain()
            raise _CutError
        case OneShotFault.CORRUPT:
            middle = len(piece) // 2
            return piece[:middle] + bytes([piece[middle] ^ 1]) + piece[middle + 1 :]
        case OneShotFault.DUPLICATE:
            return piece + piece


def parse_command(faults: Faults, line: str) -> Faults:
    """The faults after a line such as `delay 0.5`, `throttle 1000`, `stall`, `drop` or `heal`.

    An accident may name after how many further bytes it happens. Raises `InvalidRequestError`.
    """
    word, _, value = line.strip().partition(" ")
    try:
        number = float(value or 0)
        match word:
            case "heal":
                return NO_FAULTS
            case "stall":
                return replace(faults, is_stalled=True)
            case "delay":
                return replace(faults, delay_seconds=number)
            case "throttle":
                return replace(faults, bytes_per_second=number or None)
            case _:
                return replace(faults, accidents=((int(number), OneShotFault(word)),))
    except ValueError:
        words = ", ".join(("heal", "stall", "delay S", "throttle BYTES", *OneShotFault))
        problem = f"{line.strip()!r} is none of {words}"
        raise InvalidRequestError(field="fault", problem=problem) from None
