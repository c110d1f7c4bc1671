"""What a failed call says of having reached the wrong port: it answers, but speaks something else.

gRPC 1.85 tells it in the text of its error alone. A text that is not known here means nothing.
"""

from enum import Enum
from typing import Final

import grpc
import grpc.aio

from runtime.rpc.error_interceptor import CODE_KEY


class WrongEndpoint(Enum):
    """What is at the other end, instead of what was asked for."""

    HTTP = "speaks HTTP, as a coordinator's --http API and every --metrics address do"
    OTHER_SERVICE = "is a process of a mesh, or another gRPC server, that does not take this call"
    NO_TLS = "does not speak TLS"
    HANGS_UP = "hangs up at once, as a process with TLS does where it is asked without"


_TEXTS: Final = (
    ("http1.x", WrongEndpoint.HTTP),
    ("WRONG_VERSION_NUMBER", WrongEndpoint.NO_TLS),
    # Of a connection that never came to be; one that breaks later says `Socket closed` alone.
    (": Socket closed", WrongEndpoint.HANGS_UP),
)
# A gateway's word that nobody is behind it at the moment; who belongs there may come back.
_GATEWAY_TEXTS: Final = ("HTTP status 502", "HTTP status 503", "HTTP status 504")


def find_wrong_endpoint(error: grpc.aio.AioRpcError | grpc.Call) -> WrongEndpoint | None:
    """Who answered the call instead; None where nobody did, or the right one."""
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
