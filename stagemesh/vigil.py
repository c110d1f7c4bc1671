"""Owns the question whether a worker's process is frozen: it lives, and does not answer any more.

It asks grpc.health.v1 over and over, and ends nothing itself. A process that has not answered yet
may be starting, and is let alone.
"""

import asyncio
from typing import Any, Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtime import rpc

# Longer than a coordinator waits for a heartbeat: by then the worker is out of the mesh.
FROZEN_SECONDS: Final = 12.0
_PAUSE_SECONDS: Final = 1.0


async def until_frozen(
    address: str, tls: rpc.ChannelTls | None = None, patience_seconds: float = FROZEN_SECONDS
) -> None:
    """Returns once the process at `address` has answered, and then not for `patience_seconds`."""
    clock = asyncio.get_running_loop().time
    pause = min(_PAUSE_SECONDS, patience_seconds / 4)
    answered_at: float | None = None
    async with rpc.dial(address, tls) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while answered_at is None or clock() - answered_at < patience_seconds:
            await asyncio.sleep(pause)
            try:
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=pause)
            except grpc.aio.AioRpcError:
                continue
            answered_at = clock()
