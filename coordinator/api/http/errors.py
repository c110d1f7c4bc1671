"""HTTP responses of errors: OpenAI's JSON shape, status and headers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from runtime.errors import (
    InvalidRequestError,
    MethodNotAllowedError,
    StagemeshError,
    UnauthenticatedError,
    UnsupportedParameterError,
)

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


def error_body(error: StagemeshError) -> dict[str, Any]:
    """The error in OpenAI's JSON shape; `param` is the field at fault or null."""
    field = (
        error.field if isinstance(error, InvalidRequestError | UnsupportedParameterError) else None
    )
    default = "invalid_request_error" if error.http_status < 500 else "server_error"
    return {
        "error": {
            "message": str(error),
            "type": _TYPES.get(error.http_status, default),
            "param": field,
            "code": error.code,
        }
    }


def error_response(error: StagemeshError) -> JSONResponse:
    """The whole response, with `Retry-After` where another attempt can succeed."""
    headers = {}
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    if isinstance(error, UnauthenticatedError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowedError):
        headers["allow"] = error.allowed
    return JSONResponse(error_body(error), error.http_status, headers)


def routing_error(error: HTTPException, path: str, method: str) -> StagemeshError:
    """Starlette's error for a method that a path does not have, as ours."""
    allowed = (error.headers or {}).get("Allow", "GET")
    return MethodNotAllowedError(path=path[:200], method=method[:20], allowed=allowed)


def rename_field(error: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError:
    """The error with the field's name at the HTTP API."""
    return replace(error, field=names.get(error.field, error.field))
