"""The permanent ends of a worker's membership: refusal, release, leave request."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from protos import mesh_pb2
from runtime.errors import ProtocolVersionError, WorkerRefusedError, find_error
from runtime.rpc import channels
from stage_worker.mesh.mesh_client import LeaveRequest, maintain_membership
from tests.stage_worker.mesh.fake_coordinator import (
    WAIT_SECONDS,
    Context,
    FakeMesh,
    ignore_joined,
    make_hello,
    serving,
    stays_forever,
    welcome,
)


async def _refuse(context: Context) -> None:
    refusal = mesh_pb2.Refusal(reason="run the same build")
    await context.write(mesh_pb2.CoordinatorMessage(refusal=refusal))


async def _refuse_version(context: Context) -> None:
    raise ProtocolVersionError(expected=2, actual=1)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [(_refuse, "run the same build"), (_refuse_version, "protocol version 1")],
)
async def test_maintain_membership_refused_raises_the_reason(
    behaviour: Callable[[Context], Awaitable[None]], reason: str
) -> None:
    async with serving(FakeMesh(behaviour)) as address, asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(WorkerRefusedError, match=reason):
            await maintain_membership(address, make_hello, ignore_joined, stays_forever())


async def test_maintain_membership_server_without_mesh_is_refused_with_a_hint() -> None:
    server = channels.make_server()
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            with pytest.raises(WorkerRefusedError, match=r"--mesh address.*50051") as caught:
                await maintain_membership(address, make_hello, ignore_joined, stays_forever())
    finally:
        await server.stop(grace=None)

    assert find_error(caught.value) is caught.value


async def test_maintain_membership_http_server_is_refused_with_the_mesh_port() -> None:
    """The --http and --mesh addresses of a coordinator are easily confused."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(WAIT_SECONDS):
            with pytest.raises(WorkerRefusedError, match=r"speaks HTTP.*--mesh.*50051"):
                await maintain_membership(address, make_hello, ignore_joined, stays_forever())


async def test_maintain_membership_released_returns() -> None:
    async def behaviour(context: Context) -> None:
        await welcome(context)
        await context.write(mesh_pb2.CoordinatorMessage(released=mesh_pb2.Released()))
        await asyncio.Event().wait()

    joined: asyncio.Queue[bool] = asyncio.Queue()
    async with serving(FakeMesh(behaviour)) as address, asyncio.timeout(WAIT_SECONDS):
        await maintain_membership(address, make_hello, joined.put, stays_forever())
    assert [joined.get_nowait(), joined.get_nowait()] == [True, False]


async def test_maintain_membership_leave_request_is_sent_and_ends_with_the_release() -> None:
    async def behaviour(context: Context) -> None:
        await welcome(context, heartbeat_seconds=10.0)
        message = await context.read()
        assert isinstance(message, mesh_pb2.WorkerMessage)
        assert message.leaving.grace_seconds == 7.0
        await context.write(mesh_pb2.CoordinatorMessage(released=mesh_pb2.Released()))
        await asyncio.Event().wait()

    leave_request = LeaveRequest(asyncio.Event(), grace_seconds=7.0)
    leave_request.requested.set()
    async with serving(FakeMesh(behaviour)) as address, asyncio.timeout(WAIT_SECONDS):
        await maintain_membership(address, make_hello, ignore_joined, leave_request)


async def test_maintain_membership_leave_request_ends_with_the_coordinator() -> None:
    leave_request = LeaveRequest(asyncio.Event(), grace_seconds=7.0)

    async def behaviour(context: Context) -> None:
        await welcome(context)
        leave_request.requested.set()

    async with serving(FakeMesh(behaviour)) as address, asyncio.timeout(WAIT_SECONDS):
        await maintain_membership(address, make_hello, ignore_joined, leave_request)
