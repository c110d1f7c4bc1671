"""Owns the proof that a worker answers where it says, asked before it is let in.

A wrong interface, a closed port or a link on which nothing passes is found out now, and not when
the worker is needed.
"""

import grpc
import grpc.aio

from coordinator.membership import WorkerIdentity
from coordinator.stages import STATUS_SECONDS
from protos import stage_pb2, stage_pb2_grpc
from runtime.rpc import dial, error_from_rpc
from runtime.tls import MeshTls, Role


async def find_problem(identity: WorkerIdentity, tls: MeshTls | None) -> str:
    """Why this very worker is not reached at its address; empty if it is."""
    credentials = None if tls is None else tls.towards(Role.WORKER)
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
