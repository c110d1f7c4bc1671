"""Checks that a worker answers at the address it advertises, before it joins.

A wrong interface, a closed port or a link that drops packets is found before the worker is needed.
The number of concurrent checks is bounded.
"""

import asyncio
from typing import Final

import grpc
import grpc.aio

from coordinator.membership.worker_record import WorkerIdentity
from coordinator.stage_client.stage_client import STATUS_SECONDS
from protos import stage_pb2, stage_pb2_grpc
from runtime.rpc.channels import dial, error_from_rpc
from runtime.rpc.tls import MeshTls, Role

# A large mesh that starts at once is checked within a second.
MAX_CONCURRENT: Final = 64
# Together with `STATUS_SECONDS`, less than a worker waits for its welcome.
MAX_QUEUE_SECONDS: Final = 4.0


class ReachabilityCheck:
    """Checks workers with at most `MAX_CONCURRENT` open channels."""

    def __init__(self, tls: MeshTls | None) -> None:
        self._tls = tls
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def find_problem(self, identity: WorkerIdentity) -> str:
        """Why the address does not reach this worker; empty if it does.

        Raises TimeoutError if no slot is free within `MAX_QUEUE_SECONDS`.
        """
        async with asyncio.timeout(MAX_QUEUE_SECONDS):
            await self._slots.acquire()
        try:
            return await _find_problem(identity, self._tls)
        finally:
            self._slots.release()


async def _find_problem(identity: WorkerIdentity, tls: MeshTls | None) -> str:
    credentials = None if tls is None else tls.credentials_for(Role.WORKER)
    async with dial(identity.address, credentials) as channel:
        stub = stage_pb2_grpc.StageStub(channel)
        try:
            status = await stub.Status(stage_pb2.StatusRequest(), timeout=STATUS_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"no answer within {STATUS_SECONDS:g} s"
            _, message = error_from_rpc(error)
            return message
    if status.worker_id != identity.worker_id:
        return f"another worker, {status.worker_id[:100]}, answers there"
    return ""
