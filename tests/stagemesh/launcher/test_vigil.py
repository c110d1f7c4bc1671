"""When a process counts as frozen."""

import asyncio
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtime.rpc import channels
from stagemesh.launcher.ports import reserve
from stagemesh.launcher.vigil import until_frozen

PATIENCE_SECONDS = 1.0


class Freezing(health_pb2_grpc.HealthServicer):
    """Answers until `frozen` is set, and then never."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.frozen = asyncio.Event()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.frozen.is_set():
            await asyncio.Event().wait()
        self.answered.set()
        return health_pb2.HealthCheckResponse()


async def test_process_that_answers_no_more_is_frozen() -> None:
    process, server = Freezing(), channels.make_server()
    health_pb2_grpc.add_HealthServicer_to_server(process, server)
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    watch = asyncio.create_task(until_frozen(address, patience_seconds=PATIENCE_SECONDS))
    async with asyncio.timeout(20):
        for _ in range(6):  # it answers for longer than the patience lasts
            process.answered.clear()
            await process.answered.wait()
        assert not watch.done()
        process.frozen.set()
        await watch
    await server.stop(None)


async def test_process_that_has_not_answered_yet_is_let_alone() -> None:
    nobody = reserve("127.0.0.1:0")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            await until_frozen(nobody, patience_seconds=PATIENCE_SECONDS)


async def test_process_that_listens_no_more_is_given_the_time_to_end() -> None:
    """A worker whose GPU takes long to let go of its memory is not killed for it."""
    process, server = Freezing(), channels.make_server()
    health_pb2_grpc.add_HealthServicer_to_server(process, server)
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    clock = asyncio.get_running_loop().time
    watch = asyncio.create_task(
        until_frozen(
            address, patience_seconds=PATIENCE_SECONDS, ending_seconds=3 * PATIENCE_SECONDS
        )
    )
    async with asyncio.timeout(20):
        for _ in range(2):  # once it asks again, it has the first answer
            process.answered.clear()
            await process.answered.wait()
        await server.stop(None)
        stopped = clock()
        await watch
    assert clock() - stopped > 2 * PATIENCE_SECONDS
