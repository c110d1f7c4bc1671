"""Authenticates calls at both APIs by their API key, before their body is read.

All services and routes that are not listed as open need a key.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.security.api_keys import ANONYMOUS, ApiKeys, Tenant
from protos import mesh_pb2
from runtime.errors import UnauthenticatedError

AUTHORIZATION: Final = "authorization"

# Probes have no key, and reflection returns the contents of protos/, which are public.
_OPEN_SERVICES: Final = (health.SERVICE_NAME, reflection.SERVICE_NAME)
_OPEN_PATHS: Final = ("/health", "/ready", "/")
# The live page's files; the page asks its user for the key that its calls need.
_OPEN_FOLDER: Final = "/live/"
# Open unless `--protect-state` is set: state and metrics.
_STATE_SERVICES: Final = (mesh_pb2.DESCRIPTOR.services_by_name["Operations"].full_name,)
_STATE_PATHS: Final = ("/metrics", "/sd", "/state", "/version")

CURRENT_TENANT: ContextVar[Tenant] = ContextVar("tenant", default=ANONYMOUS)
"""The tenant of the running gRPC call; an interceptor cannot pass arguments to its handler."""


class HttpAuthentication:
    """ASGI middleware that sets `tenant` in the request's state."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, protect_state: bool) -> None:
        self._app = app
        self._keys = keys
        self._open = _OPEN_PATHS if protect_state else (*_OPEN_PATHS, *_STATE_PATHS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one exchange; raises `UnauthenticatedError`."""
        path = scope["path"]
        if path not in self._open and not path.startswith(_OPEN_FOLDER):
            scope["state"]["tenant"] = self._keys.tenant(Headers(scope=scope).get(AUTHORIZATION))
        await self._app(scope, receive, send)


class GrpcAuthentication(grpc.aio.ServerInterceptor):
    """Refuses calls without a valid key; their message is not decoded."""

    def __init__(self, keys: ApiKeys, protect_state: bool) -> None:
        self._keys = keys
        self._open = _OPEN_SERVICES if protect_state else (*_OPEN_SERVICES, *_STATE_SERVICES)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The call's own handler, or one that raises `UnauthenticatedError`."""
        handler = await continuation(handler_call_details)
        # Existing methods have the form /SERVICE/METHOD; others have no handler.
        if handler is None or handler_call_details.method.split("/")[1] in self._open:
            return handler
        metadata = dict(handler_call_details.invocation_metadata or ())
        try:
            CURRENT_TENANT.set(self._keys.tenant(_as_text(metadata.get(AUTHORIZATION))))
        except UnauthenticatedError as error:
            return _refusing(handler, error)
        return handler


def _refusing(handler: Any, error: UnauthenticatedError) -> Any:
    async def refuse(request: bytes, context: Any) -> NoReturn:
        raise error

    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse, None, None)
    return grpc.unary_unary_rpc_method_handler(refuse, None, None)


def _as_text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
