"""Middleware of all HTTP exchanges: request id, trace id, common headers and error responses.

Every exception becomes an error response. A failure after a response has begun closes the
connection instead, so that a client never takes a partial response for a whole one.
"""

import re
import time
import uuid
from collections.abc import Callable
from email.utils import formatdate
from typing import Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.api.http.errors import error_response, routing_error
from coordinator.requests.validation import check_request_id
from runtime.errors import StagemeshError, find_error
from runtime.host.logs import get_logger

REQUEST_ID: Final = "x-request-id"
TRACEPARENT: Final = "traceparent"

# https://www.w3.org/TR/trace-context/#traceparent-header: version, trace, parent, flags.
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

_log = get_logger()


class RequestContextMiddleware:
    """ASGI middleware around the routes; sets `request_id` in the request's state."""

    def __init__(self, app: ASGIApp, count_response: Callable[[str, int], None]) -> None:
        """`count_response` is called with the path and the status of every response."""
        self._app = app
        self._count_response = count_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one exchange."""
        headers = Headers(scope=scope)
        request_id = headers.get(REQUEST_ID) or uuid.uuid4().hex
        sender = _ResponseSender(send, {REQUEST_ID: request_id})
        trace = _TRACEPARENT.fullmatch(headers.get(TRACEPARENT, ""))
        if trace is not None:
            sender.headers[TRACEPARENT] = trace[0]
            structlog.contextvars.bind_contextvars(trace_id=trace[1])
        # With an `app`, Starlette's router raises for a wrong method instead of sending plain text.
        scope["app"] = self
        scope["state"] = {"request_id": request_id}
        try:
            try:
                check_request_id(request_id)
            except StagemeshError:
                sender.headers[REQUEST_ID] = uuid.uuid4().hex
                raise
            await self._app(scope, receive, sender.send)
        except ClientDisconnect:
            _log.info("client_left", path=scope["path"], request_id=request_id)
        except Exception as exc:  # the boundary of the API
            error = _explain(exc, scope)
            if sender.has_started:
                raise
            await error_response(error)(scope, receive, sender.send)
        finally:
            if sender.has_started:
                self._count_response(scope["path"], sender.status)


class _ResponseSender:
    """Sends the response with the common headers and records whether it has begun."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self.headers = headers
        self.has_started = False
        self.status = 0
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started, self.status = True, message["status"]
            headers = MutableHeaders(scope=message)
            headers["date"] = formatdate(time.time(), usegmt=True)
            headers.update(self.headers)
        await self._send(message)


def _explain(exc: Exception, scope: Scope) -> StagemeshError:
    path, method = scope["path"], scope["method"]
    if isinstance(exc, HTTPException):
        return routing_error(exc, path, method)
    error = find_error(exc)
    if error is None:
        _log.error("http_failed", path=path, method=method, exc_info=exc)
        return StagemeshError()
    _log.info("http_refused", path=path, method=method, code=error.code, message=str(error))
    return error
