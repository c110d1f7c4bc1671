"""The machine-readable details of a gRPC error: `google.rpc.Status` in the trailing metadata.

Follows https://google.aip.dev/193: every error has `ErrorInfo`, one about a field has `BadRequest`,
a temporary one has `RetryInfo`.
"""

from dataclasses import fields
from typing import Final
from urllib.parse import quote

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from runtime.errors import InvalidRequestError, StagemeshError, UnsupportedParameterError

# The key and the rule that `code` and `message` repeat the call's own are grpcio-status's.
DETAILS_KEY: Final = "grpc-status-details-bin"
DOMAIN: Final = "stagemesh"

# All of a trailer must stay below 8 KiB, where a message appears percent-encoded, and again here,
# as base64.
_MAX_ENCODED_MESSAGE: Final = 1_800
_MAX_DESCRIPTION: Final = 200
_MAX_METADATA_VALUE: Final = 60


def short_message(error: StagemeshError) -> str:
    """The message of `error`, truncated to what a trailer holds."""
    message = str(error)[:_MAX_ENCODED_MESSAGE]
    while len(quote(message)) > _MAX_ENCODED_MESSAGE:
        message = message[: len(message) * 3 // 4]
    return message


def error_status(error: StagemeshError, message: str) -> bytes:
    """The serialized status of `error`, whose call ends with `message`."""
    status = Status(code=_number(error.grpc_status), message=message)
    for detail in _details(error):
        status.details.add().Pack(detail)
    return status.SerializeToString()


def error_metadata(status: bytes) -> dict[str, str]:
    """An error's fields, from a status made by `error_status`; otherwise empty."""
    try:
        details = Status.FromString(status).details
    except DecodeError:
        return {}
    info = ErrorInfo()
    return dict(info.metadata) if any(detail.Unpack(info) for detail in details) else {}


def retry_after_seconds(status: bytes) -> float | None:
    """Seconds until a retry, from a status made by `error_status`; None if absent."""
    try:
        details = Status.FromString(status).details
    except DecodeError:
        return None
    info = RetryInfo()
    if not any(detail.Unpack(info) for detail in details):
        return None
    delay = info.retry_delay
    return max(0.0, delay.seconds + delay.nanos / 1e9)


def _details(error: StagemeshError) -> list[Message]:
    details: list[Message] = [
        ErrorInfo(reason=error.code.upper(), domain=DOMAIN, metadata=_metadata(error))
    ]
    if isinstance(error, InvalidRequestError | UnsupportedParameterError):
        violation = BadRequest.FieldViolation(
            field=error.field, description=error.problem[:_MAX_DESCRIPTION]
        )
        details.append(BadRequest(field_violations=[violation]))
    if error.retry_after_seconds is not None:
        delay = Duration(seconds=error.retry_after_seconds)
        details.append(RetryInfo(retry_delay=delay))
    return details


def _metadata(error: StagemeshError) -> dict[str, str]:
    """The error's fields, except those in `BadRequest`."""
    values = {field.name: str(getattr(error, field.name)) for field in fields(error)}
    return {
        name: value[:_MAX_METADATA_VALUE]
        for name, value in values.items()
        if name not in ("field", "problem")
    }


def _number(status: str) -> int:
    number: int = grpc.StatusCode[status].value[0]
    return number
