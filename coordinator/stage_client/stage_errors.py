"""Owns what a failed call to a worker means: it refused, failed, is gone, or reaches no other one.

Pure functions of the call's error.
"""

from collections.abc import Sequence
from typing import Final

import grpc
import grpc.aio

from runtime.errors import (
    LinkBrokenError,
    StagemeshError,
    WorkerDiedError,
    WorkerFailedError,
    WorkerRefusedError,
)
from runtime.rpc.channels import details_from_rpc, error_from_rpc
from runtime.rpc.error_details import error_metadata

# Statuses that say nothing about the request itself: the same call may work on the next try.
_TRANSIENT: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
)
# Statuses of a worker that failed at what it, or another, may do on another try.
_FAILURES: Final = ("INTERNAL", "UNKNOWN", "RESOURCE_EXHAUSTED")


def stage_error(error: grpc.aio.AioRpcError, worker: str) -> StagemeshError:
    """What the failed call to `worker` says of it."""
    _, message = error_from_rpc(error)
    if error.code() in _TRANSIENT:
        return WorkerDiedError(worker=worker, detail=message)
    if error.code().name in _FAILURES:
        return WorkerFailedError(worker=worker, reason=message)
    return WorkerRefusedError(worker=worker, reason=message)


def opening_error(error: grpc.aio.AioRpcError, worker: str, peers: Sequence[str]) -> StagemeshError:
    """Likewise, for a worker that had to reach those at `peers`, and may have failed at that."""
    # Cut, if it was long; where one peer's port begins like another's, the shorter one is meant.
    address = error_metadata(details_from_rpc(error)).get("address")
    for peer in sorted(peers, key=len):
        if address and peer.startswith(address):
            _, message = error_from_rpc(error)
            detail = message.rpartition(f"{peer}: ")[2]
            return LinkBrokenError(worker=worker, peer=peer, detail=detail)
    return stage_error(error, worker)
