"""Recognises failed calls to a wrong port, where a server of another protocol responds.

gRPC 1.85 reports it in the text of its error only. Other texts are ignored.
"""

from enum import Enum
from typing import Final

import grpc
import grpc.aio

from runtime.rpc.error_interceptor import CODE_KEY


class WrongEndpoint(Enum):
    """The kind of server at the other end."""

    HTTP = "speaks HTTP, as a coordinator's --http API and every --metrics address do"
    OTHER_SERVICE = "is a process of a mesh, or another gRPC server, that does not take this call"
    NO_TLS = "does not speak TLS"
    HANGS_UP = "hangs up at once, as a process with TLS does where it is asked without"


_TEXTS: Final = (
    ("http1.x", WrongEndpoint.HTTP),
    ("WRONG_VERSION_NUMBER", WrongEndpoint.NO_TLS),
    # Of a connection that was never established; one that breaks later has `Socket closed` only.
    (": Socket closed", WrongEndpoint.HANGS_UP),
)
# A gateway without a backend at the moment; the backend may come back.
_GATEWAY_TEXTS: Final = ("HTTP status 502", "HTTP status 503", "HTTP status 504")


def find_wrong_endpoint(error: grpc.aio.AioRpcError | grpc.Call) -> WrongEndpoint | None:
    """The kind of server that responded; None if none did, or the right one."""
    details = error.details() or ""
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        metadata = error.trailing_metadata() or ()
        is_ours = any(key == CODE_KEY for key, _ in metadata)
        return None if is_ours else WrongEndpoint.OTHER_SERVICE
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return None
    if any(text in details for text in _GATEWAY_TEXTS):
        return None
    for text, wrong_endpoint in _TEXTS:
        if text in details:
            return wrong_endpoint
    return None
