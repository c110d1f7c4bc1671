"""Converts a failed gRPC call into one exception with a stable code and a helpful message."""

from typing import Final

import grpc
import grpc.aio

from runtime.rpc.channels import details_from_rpc, error_from_rpc
from runtime.rpc.error_details import retry_after_seconds
from runtime.rpc.wrong_endpoint import WrongEndpoint, find_wrong_endpoint

_API_HINT: Final = (
    "set --target to the coordinator's gRPC API, by default port 50050, or for `drain` to its "
    "--mesh address, by default port 50051"
)
_WRONG_ENDPOINT_HINTS: Final = {
    WrongEndpoint.HTTP: _API_HINT,
    WrongEndpoint.OTHER_SERVICE: _API_HINT,
    WrongEndpoint.NO_TLS: "omit --tls-ca and --tls-dir, or set --target to another address",
    WrongEndpoint.HANGS_UP: (
        "set --tls-ca for an API with a certificate, or --tls-dir for a --mesh or worker address"
    ),
}


class StagemeshRpcError(Exception):
    """Raised when a call fails.

    `code` is stable: the server's code (`prompt_too_long`, `queue_full`, ...), or `unreachable`
    if no server answered. `status` is the name of the gRPC status. `retry_after_seconds` is the
    server's proposed delay before a retry, or None. `str()` is the message for people.
    """

    def __init__(
        self, code: str, status: str, message: str, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retry_after_seconds = retry_after_seconds


def rpc_error(error: grpc.RpcError, target: str, *, is_quick: bool = False) -> StagemeshRpcError:
    """Converts `error`; `is_quick` marks calls that a mesh answers at once, so not generations."""
    # Both kinds of call errors have the attributes of a call, which grpc.RpcError lacks.
    assert isinstance(error, grpc.aio.AioRpcError | grpc.Call)
    code, message = error_from_rpc(error)
    status = error.code().name
    if (wrong_endpoint := find_wrong_endpoint(error)) is not None:
        code = "unreachable" if code == "unavailable" else code
        hint = _WRONG_ENDPOINT_HINTS[wrong_endpoint]
        message = f"what answers at {target} {wrong_endpoint.value}; {hint}"
    elif code == "unavailable":
        code = "unreachable"
        message = (
            f"no mesh answers at {target}: start one with `stagemesh serve MODEL`, "
            f"or set --target to a running one ({message})"
        )
    elif code == "deadline_exceeded":
        message = "the deadline passed before the answer was complete; set a longer timeout"
        if is_quick:
            message = f"{target} accepts connections but did not answer in time; check its process"
    elif code == "invalid_api_key":
        message = f"{message} (set --api-key, or STAGEMESH_API_KEY in the environment)"
    return StagemeshRpcError(code, status, message, retry_after_seconds(details_from_rpc(error)))
