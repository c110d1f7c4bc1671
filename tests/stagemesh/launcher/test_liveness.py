"""When a worker's process counts as unresponsive, and when as missing from the mesh."""

import asyncio
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtime.rpc import channels
from stagemesh.launcher.liveness import MissingWorkers, wait_until_unresponsive
from stagemesh.launcher.ports import reserve

TIMEOUT_SECONDS = 1.0


class FreezingServer(health_pb2_grpc.HealthServicer):
    """Answers until `frozen` is set, and then never."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.frozen = asyncio.Event()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.frozen.is_set():
            await asyncio.Event().wait()
        self.answered.set()
        return health_pb2.HealthCheckResponse()


async def test_wait_until_unresponsive_server_that_freezes_returns() -> None:
    process, server = FreezingServer(), channels.make_server()
    health_pb2_grpc.add_HealthServicer_to_server(process, server)
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    watch = asyncio.create_task(wait_until_unresponsive(address, timeout_seconds=TIMEOUT_SECONDS))
    async with asyncio.timeout(20):
        for _ in range(6):  # the server answers for longer than the timeout
            process.answered.clear()
            await process.answered.wait()
        assert not watch.done()
        process.frozen.set()
        await watch
    await server.stop(None)


async def test_wait_until_unresponsive_process_that_never_answered_keeps_waiting() -> None:
    unused = reserve("127.0.0.1:0")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * TIMEOUT_SECONDS):
            await wait_until_unresponsive(unused, timeout_seconds=TIMEOUT_SECONDS)


async def test_wait_until_unresponsive_closed_listener_gets_the_shutdown_time() -> None:
    """A worker whose GPU frees its memory slowly is not killed for it."""
    process, server = FreezingServer(), channels.make_server()
    health_pb2_grpc.add_HealthServicer_to_server(process, server)
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    clock = asyncio.get_running_loop().time
    watch = asyncio.create_task(
        wait_until_unresponsive(
            address, timeout_seconds=TIMEOUT_SECONDS, shutdown_seconds=3 * TIMEOUT_SECONDS
        )
    )
    async with asyncio.timeout(20):
        for _ in range(2):  # the second request proves that the first answer arrived
            process.answered.clear()
            await process.answered.wait()
        await server.stop(None)
        stopped = clock()
        await watch
    assert clock() - stopped > 2 * TIMEOUT_SECONDS


def test_missing_workers_absent_for_longer_than_the_timeout_are_returned() -> None:
    missing = MissingWorkers(10.0, 60.0)
    assert missing.update({1, 2}, {1, 2}, 0.0) == []
    assert missing.update({1, 2}, {1}, 9.0) == []
    assert missing.update({1, 2}, {1}, 11.0) == [2]


def test_missing_workers_that_rejoin_start_a_new_timeout() -> None:
    missing = MissingWorkers(10.0, 60.0)
    missing.update({1}, {1}, 0.0)
    missing.update({1}, set(), 9.0)
    missing.update({1}, {1}, 10.0)
    assert missing.update({1}, set(), 19.0) == []


def test_missing_workers_that_never_joined_or_have_ended_are_not_returned() -> None:
    missing = MissingWorkers(10.0, 60.0)
    missing.update({1, 2}, {2}, 0.0)
    assert missing.update({1}, set(), 100.0) == []


def test_missing_workers_that_shut_down_have_more_time() -> None:
    missing = MissingWorkers(10.0, 60.0)
    missing.update({1}, {1}, 0.0)
    assert missing.update({1}, set(), 11.0) == [1]
    assert not missing.exceeds_shutdown_time(1, 11.0)
    assert missing.exceeds_shutdown_time(1, 61.0)
