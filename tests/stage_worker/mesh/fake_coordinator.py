"""A fake coordinator for `Mesh.Join`, and the arguments of a worker that joins it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from protos import mesh_pb2, mesh_pb2_grpc
from runtime.rpc import channels
from stage_worker.mesh.mesh_client import LeaveRequest

Context = grpc.aio.ServicerContext[mesh_pb2.WorkerMessage, mesh_pb2.CoordinatorMessage]
WAIT_SECONDS = 10.0
HELLO = mesh_pb2.Hello(worker_id="w", address="127.0.0.1:9")


class FakeMesh(mesh_pb2_grpc.MeshServicer):
    """Runs `behaviour` on each Join stream after its hello."""

    def __init__(self, behaviour: Callable[[Context], Awaitable[None]]) -> None:
        self.hellos: asyncio.Queue[mesh_pb2.Hello] = asyncio.Queue()
        self._behaviour = behaviour

    async def Join(self, _: Any, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        message = await context.read()
        assert isinstance(message, mesh_pb2.WorkerMessage)
        self.hellos.put_nowait(message.hello)
        await self._behaviour(context)


@asynccontextmanager
async def serving(mesh: FakeMesh, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Serves `mesh` and yields its address."""
    server = channels.make_server()
    mesh_pb2_grpc.add_MeshServicer_to_server(mesh, server)
    bound = await channels.bind(server, address)
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(grace=None)


async def welcome(context: Context, heartbeat_seconds: float = 0.05) -> None:
    """Accepts the worker."""
    message = mesh_pb2.Welcome(coordinator_id="c", heartbeat_seconds=heartbeat_seconds)
    await context.write(mesh_pb2.CoordinatorMessage(welcome=message))


async def make_hello() -> mesh_pb2.Hello:
    """The worker's hello."""
    return HELLO


def stays_forever() -> LeaveRequest:
    """A leave request that is never made."""
    return LeaveRequest(asyncio.Event(), grace_seconds=1.0)


async def ignore_joined(is_joined: bool) -> None:
    """A `set_joined` that does nothing."""
