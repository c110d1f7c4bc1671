"""The fault proxy: forwarding without faults, and each kind of fault."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runtime.errors import InvalidRequestError
from stagemesh.faults.fault_proxy import NO_FAULTS, FaultProxy, Faults, OneShotFault, parse_command

MESSAGE = bytes(range(256)) * 4
# Long enough to be measurable; everything that waits for it ends as soon as it can.
A_WHILE = 0.2


@asynccontextmanager
async def echoing(faults: Faults) -> AsyncIterator[tuple[FaultProxy, str]]:
    """A proxy before a server that answers every byte with itself."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, asyncio.timeout(20):
        port = server.sockets[0].getsockname()[1]
        async with FaultProxy.listening("127.0.0.1:0", f"127.0.0.1:{port}") as (proxy, address):
            proxy.set(faults)
            yield proxy, address


async def exchange(address: str, message: bytes = MESSAGE) -> bytes:
    """What comes back until the connection ends, in one way or another."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = b""
    try:
        writer.write(message)
        writer.write_eof()
        while piece := await reader.read(1 << 16):
            answer += piece
    except ConnectionError:
        pass
    finally:
        writer.close()
    return answer


async def test_proxy_without_faults_forwards_and_counts_all_bytes() -> None:
    async with echoing(NO_FAULTS) as (proxy, address):
        large = MESSAGE * 1000
        assert await exchange(address, large) == large
        assert (proxy.num_connections, proxy.num_bytes) == (1, 2 * len(large))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (OneShotFault.DROP, b""),
        (OneShotFault.TRUNCATE, MESSAGE[:512]),
        (OneShotFault.CORRUPT, MESSAGE[:512] + b"\x01" + MESSAGE[513:]),
        (OneShotFault.DUPLICATE, MESSAGE + MESSAGE),
    ],
)
async def test_accident_happens_once_to_the_piece_that_it_is_for(
    fault: OneShotFault, expected: bytes
) -> None:
    # On its way back: the first 1024 bytes are the way there.
    async with echoing(Faults(one_shots=((len(MESSAGE) + 1, fault),))) as (_, address):
        assert await exchange(address) == expected
        assert await exchange(address) == MESSAGE


@pytest.mark.parametrize("faults", [Faults(delay_seconds=A_WHILE), Faults(bytes_per_second=5120)])
async def test_proxy_with_delay_or_throttle_is_slow(faults: Faults) -> None:
    async with echoing(faults) as (_, address):
        begun = time.monotonic()
        assert await exchange(address) == MESSAGE
        assert time.monotonic() - begun > 1.8 * A_WHILE


async def test_stall_holds_everything_until_it_is_healed() -> None:
    async with echoing(Faults(is_stalled=True)) as (proxy, address), asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(exchange(address))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asking), A_WHILE)
        assert proxy.num_bytes == 0
        proxy.set(NO_FAULTS)
        await proxy.wait_for_bytes(2 * len(MESSAGE))
        assert await asking == MESSAGE


async def test_proxy_without_a_target_closes_the_connection() -> None:
    async with FaultProxy.listening("127.0.0.1:0", "127.0.0.1:1") as (_, address):
        assert await exchange(address) == b""


def test_parse_command_changes_the_faults() -> None:
    faults = parse_command(parse_command(NO_FAULTS, "delay 0.5\n"), "throttle 1000")
    assert faults == Faults(delay_seconds=0.5, bytes_per_second=1000)
    assert parse_command(faults, "stall").is_stalled
    assert parse_command(NO_FAULTS, "drop") == Faults(one_shots=((0, OneShotFault.DROP),))
    assert parse_command(NO_FAULTS, "corrupt 99").one_shots == ((99, OneShotFault.CORRUPT),)
    assert parse_command(faults, "heal") == NO_FAULTS
    for line in ("explode", "delay long", ""):
        with pytest.raises(InvalidRequestError, match="is not one of heal"):
            parse_command(NO_FAULTS, line)
