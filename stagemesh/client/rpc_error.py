"""Owns what a failed call means to a client: one exception with a stable code."""

from typing import Final

import grpc
import grpc.aio

from runtime.rpc.channels import details_from_rpc, error_from_rpc
from runtime.rpc.error_details import retry_after_seconds
from runtime.rpc.wrong_endpoint import WrongEndpoint, find_wrong_endpoint

_API_HINT: Final = (
    "give --target the coordinator's gRPC API, whose port is 50050 by default; `drain` asks at "
    "its --mesh address, port 50051"
)
_WRONG_ENDPOINT_HINTS: Final = {
    WrongEndpoint.HTTP: _API_HINT,
    WrongEndpoint.OTHER_SERVICE: _API_HINT,
    WrongEndpoint.NO_TLS: "leave --tls-ca and --tls-dir out, or give --target another address",
    WrongEndpoint.HANGS_UP: (
        "give --tls-ca if it is an API with a certificate, --tls-dir if it is a link of the mesh"
    ),
}


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


def rpc_error(error: grpc.RpcError, target: str, *, is_quick: bool = False) -> StagemeshRpcError:
    """What a failed call means to its caller; a mesh answers one that `is_quick` at once."""
    # gRPC's own classes promise less than both its kinds of call errors keep.
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
            f"or name another with --target ({message})"
        )
    elif code == "deadline_exceeded":
        message = "the deadline passed before the answer was complete; allow more time"
        if is_quick:
            message = f"{target} takes connections but did not answer in time; see what is there"
    elif code == "invalid_api_key":
        message = f"{message} (--api-key, or STAGEMESH_API_KEY in the environment)"
    return StagemeshRpcError(code, status, message, retry_after_seconds(details_from_rpc(error)))
