"""Owns the proof that a worker answers where it says, asked before it is let in.

A wrong interface, a closed port or a link on which nothing passes is found out now, and not when
the worker is needed. However many say hello, only so many are asked at once.
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

# As many as ask in the same moment when a large mesh starts are asked within a second.
MAX_CONCURRENT: Final = 64
# With the wait for the answer, less than a worker waits for its welcome.
MAX_QUEUE_SECONDS: Final = 4.0


class ReachabilityCheck:
    """Whoever joins is asked in turn; `MAX_CONCURRENT` channels at most are open for it."""

    def __init__(self, tls: MeshTls | None) -> None:
        self._tls = tls
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def find_problem(self, identity: WorkerIdentity) -> str:
        """Why this very worker is not reached at its address; empty if it is.

        Raises TimeoutError when its turn does not come.
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
