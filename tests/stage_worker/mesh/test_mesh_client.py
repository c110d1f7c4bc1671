"""A worker's membership, against a fake coordinator."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from protos import mesh_pb2
from runtime.backoff import Backoff
from stage_worker.mesh import mesh_client
from stage_worker.mesh.mesh_client import maintain_membership
from tests.stage_worker.mesh.fake_coordinator import (
    HELLO,
    WAIT_SECONDS,
    Context,
    FakeMesh,
    make_hello,
    serving,
    stays_forever,
    welcome,
)


@asynccontextmanager
async def _joining(
    address: str,
    make_hello: Callable[[], Awaitable[mesh_pb2.Hello]] = make_hello,
) -> AsyncIterator[asyncio.Queue[bool]]:
    """Joins; yields the queue of its `set_joined` calls."""
    joined: asyncio.Queue[bool] = asyncio.Queue()
    task = asyncio.create_task(
        maintain_membership(address, make_hello, joined.put, stays_forever())
    )
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            yield joined
    finally:
        task.cancel()
        await asyncio.wait((task,))
    assert task.cancelled(), "membership ended by itself"


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_client, "_BACKOFF", Backoff(0.01, 0.05))


async def test_maintain_membership_same_refusal_repeatedly_is_logged_once() -> None:
    reasons = iter(["full", "full", "full", "closing", "closing"])

    async def behaviour(context: Context) -> None:
        if (reason := next(reasons, None)) is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        await welcome(context)
        await asyncio.Event().wait()

    with capture_logs() as logs:
        async with serving(FakeMesh(behaviour)) as address, _joining(address) as joined:
            while not await joined.get():
                pass
    assert [log["reason"] for log in logs if log["event"] == "not_joined"] == ["full", "closing"]


async def test_maintain_membership_welcomed_sends_heartbeats() -> None:
    beaten = asyncio.Event()

    async def behaviour(context: Context) -> None:
        await welcome(context)
        for _ in range(3):
            message = await context.read()
            assert isinstance(message, mesh_pb2.WorkerMessage)
            assert message.HasField("heartbeat")
            await context.write(mesh_pb2.CoordinatorMessage(heartbeat=mesh_pb2.Heartbeat()))
        beaten.set()
        await context.read()

    mesh = FakeMesh(behaviour)
    async with serving(mesh) as address, _joining(address):
        await beaten.wait()
        assert mesh.hellos.get_nowait() == HELLO


async def test_maintain_membership_coordinator_restarts_joins_each_time() -> None:
    async def behaviour(context: Context) -> None:
        await welcome(context)
        await context.read()

    first, second = FakeMesh(behaviour), FakeMesh(behaviour)
    async with serving(FakeMesh(behaviour)) as address:
        pass  # only to learn a free port
    async with _joining(address):
        async with serving(first, address):
            assert await first.hellos.get() == HELLO
        async with serving(second, address):
            assert await second.hellos.get() == HELLO


async def test_maintain_membership_unresolved_name_retries_with_a_new_hello() -> None:
    num_tries = 0

    async def hello_at_second_try() -> mesh_pb2.Hello:
        nonlocal num_tries
        num_tries += 1
        if num_tries == 1:
            raise socket.gaierror("the coordinator has no address")
        return HELLO

    async def behaviour(context: Context) -> None:
        await welcome(context)
        await context.read()

    mesh = FakeMesh(behaviour)
    async with serving(mesh) as address, _joining(address, hello_at_second_try):
        assert await mesh.hellos.get() == HELLO


async def test_maintain_membership_coordinator_lost_reports_not_joined() -> None:
    async def leave(context: Context) -> None:
        await welcome(context)

    async with serving(FakeMesh(leave)) as address, _joining(address) as joined:
        while not await joined.get():
            pass
        assert await joined.get() is False


@pytest.mark.parametrize("heartbeat_seconds", [0.0, -1.0, float("nan")])
async def test_maintain_membership_silent_coordinator_is_dialled_again(
    heartbeat_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_client, "_MIN_HEARTBEAT_SECONDS", 0.01)

    async def behaviour(context: Context) -> None:
        await welcome(context, heartbeat_seconds)
        while isinstance(await context.read(), mesh_pb2.WorkerMessage):
            pass

    mesh = FakeMesh(behaviour)
    async with serving(mesh) as address, _joining(address):
        for _ in range(2):
            await mesh.hellos.get()


async def test_maintain_membership_first_message_not_welcome_dials_again() -> None:
    async def behaviour(context: Context) -> None:
        await context.write(mesh_pb2.CoordinatorMessage(heartbeat=mesh_pb2.Heartbeat()))

    mesh = FakeMesh(behaviour)
    async with serving(mesh) as address, _joining(address):
        for _ in range(2):
            await mesh.hellos.get()
