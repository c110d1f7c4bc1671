"""Owns what every HTTP exchange has in common: its ids, its headers, and the end of its errors.

It is the boundary: nothing but a bug in a response that has begun gets past it, which closes the
connection, so that a client never takes a torn answer for a whole one.
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

from coordinator.api.http.errors import error_response, from_routing
from coordinator.requests.validation import check_request_id
from runtime.errors import StagemeshError, find_error
from runtime.host.logs import get_logger

REQUEST_ID: Final = "x-request-id"
TRACEPARENT: Final = "traceparent"

# https://www.w3.org/TR/trace-context/#traceparent-header: version, trace, parent, flags.
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

_log = get_logger()


class RequestContextMiddleware:
    """ASGI middleware around the routes; it puts `request_id` into the request's state."""

    def __init__(self, app: ASGIApp, note_answer: Callable[[str, int], None]) -> None:
        """`note_answer` is told the path and the status of every answer."""
        self._app = app
        self._note_answer = note_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One exchange."""
        headers = Headers(scope=scope)
        request_id = headers.get(REQUEST_ID) or uuid.uuid4().hex
        exchange = _Exchange(send, {REQUEST_ID: request_id})
        trace = _TRACEPARENT.fullmatch(headers.get(TRACEPARENT, ""))
        if trace is not None:
            exchange.headers[TRACEPARENT] = trace[0]
            structlog.contextvars.bind_contextvars(trace_id=trace[1])
        # What makes Starlette's router raise for a wrong method instead of answering in plain text.
        scope["app"] = self
        scope["state"] = {"request_id": request_id}
        try:
            try:
                check_request_id(request_id)
            except StagemeshError:
                exchange.headers[REQUEST_ID] = uuid.uuid4().hex
                raise
            await self._app(scope, receive, exchange.send)
        except ClientDisconnect:
            _log.info("client_left", path=scope["path"], request_id=request_id)
        except Exception as exc:  # the API's boundary
            error = _explain(exc, scope)
            if exchange.has_started:
                raise
            await error_response(error)(scope, receive, exchange.send)
        finally:
            if exchange.has_started:
                self._note_answer(scope["path"], exchange.status)


class _Exchange:
    """The response's way out: adds the headers, and knows whether it has begun."""

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
        return from_routing(exc, path, method)
    error = find_error(exc)
    if error is None:
        _log.error("http_failed", path=path, method=method, exc_info=exc)
        return StagemeshError()
    _log.info("http_refused", path=path, method=method, code=error.code, message=str(error))
    return error
