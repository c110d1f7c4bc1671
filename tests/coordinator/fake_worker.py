"""A worker process without a process: a fake stage behind a real server, joined to a mesh."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from protos import mesh_pb2, mesh_pb2_grpc, stage_pb2_grpc
from runtime.rpc import channels
from runtime.version import PROTOCOL_VERSION
from tests.coordinator.fake_stage import Behaviour, FakeStage


class FakeWorker:
    """A fake stage that serves and has joined a mesh."""

    def __init__(self, stage: FakeStage, server: grpc.aio.Server, address: str) -> None:
        self.stage = stage
        self.server = server
        self.address = address
        self.is_alive = True
        self.channel: grpc.aio.Channel | None = None
        self.join: grpc.aio.StreamStreamCall[Any, Any] | None = None

    async def join_mesh(self, mesh_address: str, **changes: Any) -> mesh_pb2.CoordinatorMessage:
        """Opens a Join stream, sends the hello and returns the coordinator's first message."""
        hello = mesh_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            build="fake",
            worker_id=self.stage.worker_id,
            node="here",
            address=self.address,
        )
        hello.MergeFrom(mesh_pb2.Hello(**changes))
        await self._leave()
        self.channel = channels.dial(mesh_address)
        self.join = mesh_pb2_grpc.MeshStub(self.channel).Join()
        await self.join.write(mesh_pb2.WorkerMessage(hello=hello))
        message = await self.join.read()
        assert isinstance(message, mesh_pb2.CoordinatorMessage)
        return message

    async def leave(self, grace_seconds: float) -> None:
        """Reports that it drains."""
        assert self.join is not None
        leaving = mesh_pb2.Leaving(grace_seconds=grace_seconds)
        await self.join.write(mesh_pb2.WorkerMessage(leaving=leaving))

    async def released(self) -> None:
        """Returns when the mesh lets it go; it is killed then, as its process would end."""
        assert self.join is not None
        while isinstance(message := await self.join.read(), mesh_pb2.CoordinatorMessage):
            if message.HasField("released"):
                await self.kill()
                return
        raise AssertionError("the Join stream ended without a release")

    async def kill(self) -> None:
        """Gone at once, as after SIGKILL."""
        self.is_alive = False
        await self._leave()
        await self.server.stop(None)

    async def _leave(self) -> None:
        if self.join is not None and self.channel is not None:
            self.join.cancel()
            await self.channel.close()


@asynccontextmanager
async def fake_worker(
    worker_id: str, mesh_address: str = "", **behaviour: Any
) -> AsyncIterator[FakeWorker]:
    """A worker that has joined the mesh, if one is named, and is killed at the end."""
    stage = FakeStage(worker_id, Behaviour(**behaviour))
    server = channels.make_server()
    stage_pb2_grpc.add_StageServicer_to_server(stage, server)
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    worker = FakeWorker(stage, server, address)
    try:
        if mesh_address:
            await worker.join_mesh(mesh_address)
        yield worker
    finally:
        await worker.kill()
