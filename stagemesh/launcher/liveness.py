"""Detects local workers that run but no longer work: unresponsive processes, and missing workers.

It kills nothing itself. A process that refuses connections is shutting down and gets more time; a
frozen process still accepts connections, because the operating system accepts them for it.
"""

import asyncio
import socket
from collections.abc import Set as AbstractSet
from typing import Any, Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtime.addresses import split_address
from runtime.rpc import channels

# Longer than the coordinator's heartbeat timeout: the worker has left the mesh by then.
UNRESPONSIVE_SECONDS: Final = 12.0
# Longest shutdown of a process that no longer listens: GPUs free memory, threads are joined.
SHUTDOWN_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 1.0


class MissingWorkers:
    """Finds workers, by process id, that run but left the mesh; all times are in seconds.

    A worker that has not joined yet is never reported.
    """

    def __init__(self, timeout_seconds: float, shutdown_seconds: float) -> None:
        """The longest absence of a worker, and of one that is shutting down."""
        self._timeout_seconds = timeout_seconds
        self._shutdown_seconds = shutdown_seconds
        # The last time each process was a member of the mesh.
        self._last_seen: dict[int, float] = {}

    def update(self, running: AbstractSet[int], joined: AbstractSet[int], now: float) -> list[int]:
        """Records running and joined processes; returns those absent longer than the timeout."""
        self._last_seen |= dict.fromkeys(joined & running, now)
        self._last_seen = {pid: seen for pid, seen in self._last_seen.items() if pid in running}
        return [pid for pid, seen in self._last_seen.items() if now - seen > self._timeout_seconds]

    def exceeds_shutdown_time(self, pid: int, now: float) -> bool:
        """Whether a reported worker is absent for longer than a shutdown may take."""
        return now - self._last_seen[pid] > self._shutdown_seconds


async def wait_until_unresponsive(
    address: str,
    tls: channels.ChannelTls | None = None,
    timeout_seconds: float = UNRESPONSIVE_SECONDS,
    shutdown_seconds: float = SHUTDOWN_SECONDS,
) -> None:
    """Polls the health service at `address`; returns `timeout_seconds` after its last answer.

    If the process refuses connections, returns only `shutdown_seconds` after its last answer. A
    process that never answered may still be starting, so this keeps waiting.
    """
    clock = asyncio.get_running_loop().time
    poll_seconds = min(_POLL_SECONDS, timeout_seconds / 4)
    answered_at: float | None = None
    async with channels.dial(address, tls) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            await asyncio.sleep(poll_seconds)
            try:
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=poll_seconds)
                answered_at = clock()
            except grpc.aio.AioRpcError:
                if answered_at is None:
                    continue
                silent_seconds = clock() - answered_at
                if silent_seconds >= shutdown_seconds:
                    return
                if silent_seconds < timeout_seconds:
                    continue
                if not await refuses_connections(address, poll_seconds):
                    return


async def refuses_connections(address: str, timeout_seconds: float) -> bool:
    """Whether no process listens on `address`, as during a worker's shutdown."""

    def connect() -> bool:
        try:
            socket.create_connection(split_address(address), timeout_seconds).close()
        except ConnectionRefusedError:
            return True
        except OSError:  # such as a timeout, when the listener's backlog is full
            return False
        return False

    return await asyncio.to_thread(connect)
