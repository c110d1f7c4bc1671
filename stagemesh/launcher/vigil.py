"""Owns the question whether a worker's process is frozen: it lives, and does not answer any more.

It asks grpc.health.v1 over and over, and ends nothing itself. A process that has not answered yet
may be starting, and is let alone. One that listens no more is ending, which may take its time; a
frozen one still listens, because its system takes connections for it.
"""

import asyncio
import socket
from typing import Any, Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtime.addresses import split_address
from runtime.rpc import channels

# Longer than a coordinator waits for a heartbeat: by then the worker is out of the mesh.
FROZEN_SECONDS: Final = 12.0
# What a process may take to end that listens no more: GPUs let go of memory, threads are joined.
ENDING_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 1.0


async def until_frozen(
    address: str,
    tls: channels.ChannelTls | None = None,
    patience_seconds: float = FROZEN_SECONDS,
    ending_seconds: float = ENDING_SECONDS,
) -> None:
    """Returns once the process at `address` has answered, and then not for `patience_seconds`.

    Only after `ending_seconds` for a process that refuses connections.
    """
    clock = asyncio.get_running_loop().time
    pause = min(_PAUSE_SECONDS, patience_seconds / 4)
    answered_at: float | None = None
    async with channels.dial(address, tls) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            await asyncio.sleep(pause)
            try:
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=pause)
                answered_at = clock()
            except grpc.aio.AioRpcError:
                if answered_at is None:
                    continue
                silent_seconds = clock() - answered_at
                if silent_seconds >= ending_seconds:
                    return
                if silent_seconds >= patience_seconds and not await refuses(address, pause):
                    return


async def refuses(address: str, timeout_seconds: float) -> bool:
    """Whether nobody listens there, as where a process is ending."""

    def connect() -> bool:
        try:
            socket.create_connection(split_address(address), timeout_seconds).close()
        except ConnectionRefusedError:
            return True
        except OSError:  # such as no answer: its queue of connections is full
            return False
        return False

    return await asyncio.to_thread(connect)
