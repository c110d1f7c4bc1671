"""The routes of the HTTP API and the middleware around them."""

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.api.http.chat import parse_chat
from coordinator.api.http.completions import parse_completion
from coordinator.api.http.json_reader import read_fields
from coordinator.api.http.request_context import REQUEST_ID, RequestContextMiddleware
from coordinator.api.http.streaming_response import GeneratedResponse
from coordinator.api.http.utility_routes import UtilityRoutes
from coordinator.coordinator import Coordinator
from coordinator.security.authentication import HttpAuthentication
from runtime.errors import UnknownRouteError


def make_app(coordinator: Coordinator) -> ASGIApp:
    """The ASGI application; other origins' pages may call it if the options name them."""
    routes = [*_GenerationRoutes(coordinator).routes(), *UtilityRoutes(coordinator).routes()]
    router = Router(routes, redirect_slashes=False, default=_unknown_route)
    paths, responses = {route.path for route in routes}, coordinator.metrics.http_requests

    def count_response(path: str, status: int) -> None:
        # The number of label values is bounded: all unknown paths share one.
        responses.labels(path if path in paths else "other", str(status)).inc()

    options = coordinator.options
    authenticated = HttpAuthentication(router, coordinator.keys, options.protect_state)
    app = RequestContextMiddleware(authenticated, count_response)
    if not options.cors_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=options.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=[REQUEST_ID, "retry-after"],
    )


class _GenerationRoutes:
    """The routes that generate."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._admission = coordinator.admission
        self._max_bytes = coordinator.options.max_request_bytes

    def routes(self) -> list[Route]:
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completion, methods=["POST"]),
        ]

    async def chat(self, request: Request) -> Response:
        """Answers a conversation."""
        fields = await read_fields(request, self._max_bytes)
        call = parse_chat(fields, request.state.request_id)
        return GeneratedResponse(self._admission, call, request.state.tenant)

    async def completion(self, request: Request) -> Response:
        """Continues texts."""
        fields = await read_fields(request, self._max_bytes)
        call = parse_completion(fields, request.state.request_id)
        return GeneratedResponse(self._admission, call, request.state.tenant)


async def _unknown_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise UnknownRouteError(path=scope["path"][:200])
