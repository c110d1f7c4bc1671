"""What a worker answers to health probes: alive under the empty name, a member under `Stage`.

It learns of the membership from whoever holds it, and decides nothing.
"""

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from protos import stage_pb2

# Serving while the worker is in a mesh; the empty name says: alive.
STAGE_SERVICE = stage_pb2.DESCRIPTOR.services_by_name["Stage"].full_name

_STATUSES = health_pb2.HealthCheckResponse


class WorkerHealth:
    """The health service of one worker, which starts outside of any mesh."""

    def __init__(self) -> None:
        self.is_joined = False
        self._servicer = health.aio.HealthServicer()

    async def add_to(self, server: grpc.aio.Server) -> None:
        """Serve it on `server`."""
        await self.set_joined(False)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_joined(self, is_joined: bool) -> None:
        """The worker came into a mesh, or is out of it."""
        self.is_joined = is_joined
        status = _STATUSES.SERVING if is_joined else _STATUSES.NOT_SERVING
        await self._servicer.set(STAGE_SERVICE, status)
