"""A TCP proxy that injects network faults between two processes, to test a mesh.

It does not interpret the bytes that it forwards. Faults apply to both directions of every
connection, and can be changed at any time. It buffers one chunk per direction of a connection.
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

CHUNK_BYTES = 1 << 16


class OneShotFault(StrEnum):
    """A fault that happens once, to the chunk that reaches a given number of bytes."""

    # The connection is reset, and the chunk is lost.
    DROP = "drop"
    # Half of the chunk is forwarded, and then the connection is closed normally.
    TRUNCATE = "truncate"
    # One bit of the chunk is flipped.
    CORRUPT = "corrupt"
    # The chunk is forwarded twice.
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Faults:
    """The active faults.

    `delay_seconds` delays each chunk; `bytes_per_second` limits one direction of one connection. A
    stall forwards nothing and keeps connections open. Each of `one_shots` is a number of bytes and
    the fault that happens once this number was forwarded, over all connections, since `set`.
    """

    delay_seconds: float = 0.0
    bytes_per_second: float | None = None
    is_stalled: bool = False
    one_shots: tuple[tuple[int, OneShotFault], ...] = ()


NO_FAULTS = Faults()

ServeFn = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


@asynccontextmanager
async def accepting(address: str, serve: ServeFn) -> AsyncIterator[str]:
    """Calls `serve` for every connection to HOST:PORT, and yields the bound address.

    All connections are closed at the end. Raises `PortTakenError`.
    """
    listener = await channels.open_socket(address)
    async with asyncio.TaskGroup() as tasks:
        serving: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = tasks.create_task(serve(reader, writer))
            serving.add(task)
            task.add_done_callback(serving.discard)

        server = await asyncio.start_server(accept, sock=listener, limit=CHUNK_BYTES)
        async with server:
            host = address.rpartition(":")[0]
            yield f"{host}:{listener.getsockname()[1]}"
        for task in serving:
            task.cancel()


class FaultProxy:
    """A proxy to HOST:PORT; `listening` creates it with its listener."""

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
        """Yields the proxy and its bound HOST:PORT; all connections are closed at the end.

        Raises `PortTakenError`.
        """
        proxy = cls(to)
        async with accepting(address, proxy.serve) as bound:
            yield proxy, bound

    def set(self, faults: Faults) -> None:
        """Replaces the active faults, and resets the byte count of one-shot faults."""
        self._faults = faults
        self._num_bytes_at_set = self.num_bytes
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_bytes(self, num_bytes: int) -> None:
        """Returns once `num_bytes` have been forwarded since `set`."""
        while self.num_bytes - self._num_bytes_at_set < num_bytes:
            self._passed.clear()
            await self._passed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one connection in both directions; closes both ends when one closes."""
        self.num_connections += 1
        writers = [writer]
        try:
            their_reader, their_writer = await asyncio.open_connection(
                self._host, self._port, limit=CHUNK_BYTES
            )
            writers.append(their_writer)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, their_writer))
                pumps.create_task(self._pump(their_reader, writer))
        except* (OSError, _CutError):
            pass
        finally:
            for each in writers:
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=CHUNK_BYTES)
        while chunk := await reader.read(CHUNK_BYTES):
            await self._hold(len(chunk))
            self.num_bytes += len(chunk)
            self._passed.set()
            for fault in self._take_due_faults(chunk):
                chunk = await _apply(chunk, fault, writer)
            writer.write(chunk)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()

    async def _hold(self, num_bytes: int) -> None:
        """Waits for the delay of a chunk; restarts the wait when the faults change."""
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

    def _take_due_faults(self, chunk: bytes) -> list[OneShotFault]:
        """Removes and returns the one-shot faults that this chunk triggers."""
        num_passed = self.num_bytes - self._num_bytes_at_set
        due = [each for each in self._faults.one_shots if each[0] <= num_passed]
        if due:
            left = tuple(each for each in self._faults.one_shots if each not in due)
            self._faults = replace(self._faults, one_shots=left)
        return [fault for _, fault in due]


class _CutError(Exception):
    """Raised to close a connection."""


async def _apply(chunk: bytes, fault: OneShotFault, writer: asyncio.StreamWriter) -> bytes:
    """Returns the chunk after `fault`; raises `_CutError` if the fault closes the connection."""
    match fault:
        case OneShotFault.DROP:
            raise _CutError
        case OneShotFault.TRUNCATE:
            writer.write(chunk[: len(chunk) // 2])
            writer.write_eof()
            await writer.drain()
            raise _CutError
        case OneShotFault.CORRUPT:
            middle = len(chunk) // 2
            return chunk[:middle] + bytes([chunk[middle] ^ 1]) + chunk[middle + 1 :]
        case OneShotFault.DUPLICATE:
            return chunk + chunk


def parse_command(faults: Faults, line: str) -> Faults:
    """The faults after a line such as `delay 0.5`, `throttle 1000`, `stall`, `drop` or `heal`.

    A one-shot fault takes an optional number of bytes. Raises `InvalidRequestError`.
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
                return replace(faults, one_shots=((int(number), OneShotFault(word)),))
    except ValueError:
        words = ", ".join(("heal", "stall", "delay S", "throttle BYTES", *OneShotFault))
        problem = f"{line.strip()!r} is not one of {words}"
        raise InvalidRequestError(field="fault", problem=problem) from None
