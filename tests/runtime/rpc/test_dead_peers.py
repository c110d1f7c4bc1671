"""How soon a peer that went without a word is missed where nothing is sent."""

import asyncio
from typing import Any

import grpc.aio
import pytest

from protos import mesh_pb2, mesh_pb2_grpc
from runtime.rpc import channels
from stagemesh.faults.fault_proxy import FaultProxy, Faults

NOTICED_SECONDS = 10.0


class Quiet(mesh_pb2_grpc.MeshServicer):
    """Takes one message, and waits for the next as long as there is anybody to send it."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()

    async def Join(self, _: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        await context.read()
        self.began.set()
        try:
            await context.read()
        finally:
            self.ended.set()


async def test_idle_stream_of_a_dead_peer_ends_at_both_ends_within_ten_seconds() -> None:
    """Case 26 (TensorRT-LLM#11992): keepalive finds a dead peer, on both ends' own account."""
    quiet, server = Quiet(), channels.make_server()
    mesh_pb2_grpc.add_MeshServicer_to_server(quiet, server)
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    async with (
        FaultProxy.listening("127.0.0.1:0", address) as (proxy, through),
        channels.dial(through) as channel,
    ):
        call = mesh_pb2_grpc.MeshStub(channel).Join()
        await call.write(mesh_pb2.WorkerMessage())
        await quiet.began.wait()
        proxy.set(Faults(is_stalled=True))
        async with asyncio.timeout(NOTICED_SECONDS):
            with pytest.raises(grpc.aio.AioRpcError, match="ping timeout"):
                await call.read()
            await quiet.ended.wait()
    await server.stop(None)
