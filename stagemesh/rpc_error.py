"""Owns what a failed call means to a client: one exception with a stable code."""

import grpc
import grpc.aio

from runtime.rich_errors import retry_after_seconds
from runtime.rpc import details_from_rpc, error_from_rpc


class StagemeshRpcError(Exception):
    """Raised when a call fails.

    `code` is the server's stable word (`prompt_too_long`, `queue_full`, ...) or `unreachable`
    when no server answered; `status` is the gRPC status name; `retry_after_seconds` is when the
    server says that the same call may work, if it does; `str()` is for people.
    """

    def __init__(
        self, code: str, status: str, message: str, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retry_after_seconds = retry_after_seconds


def rpc_error(error: grpc.RpcError, target: str) -> StagemeshRpcError:
    """What a failed call means to its caller."""
    # gRPC's own classes promise less than both its kinds of call errors keep.
    assert isinstance(error, grpc.aio.AioRpcError | grpc.Call)
    code, message = error_from_rpc(error)
    status = error.code().name
    if code == "unavailable":
        code = "unreachable"
        message = (
            f"no mesh answers at {target}: start one with `stagemesh serve MODEL`, "
            f"or name another with --target ({message})"
        )
    elif code == "deadline_exceeded":
        message = "the deadline passed before the answer was complete; allow more time"
    return StagemeshRpcError(code, status, message, retry_after_seconds(details_from_rpc(error)))
