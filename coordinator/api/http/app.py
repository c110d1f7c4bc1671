"""Owns the routes of the HTTP API."""

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.api.http.chat import parse_chat
from coordinator.api.http.completions import parse_completion
from coordinator.api.http.discovery import Discovery
from coordinator.api.http.json_reader import read_fields
from coordinator.api.http.live_page import live_routes
from coordinator.api.http.request_context import REQUEST_ID, RequestContextMiddleware
from coordinator.api.http.streaming_response import GeneratedResponse
from coordinator.api.http.utility_routes import UtilityRoutes
from coordinator.coordinator import Coordinator
from coordinator.security.authentication import HttpGuard
from runtime.errors import UnknownRouteError


def make_app(coordinator: Coordinator) -> ASGIApp:
    """The ASGI application; web pages of other origins may call it only if the options say so."""
    pages, calls = UtilityRoutes(coordinator), _Calls(coordinator)
    routes = [
        Route("/v1/chat/completions", calls.chat, methods=["POST"]),
        Route("/v1/completions", calls.completion, methods=["POST"]),
        Route("/v1/models", pages.models),
        Route("/v1/embeddings", pages.embeddings, methods=["POST"]),
        Route("/tokenize", pages.tokenize, methods=["POST"]),
        Route("/detokenize", pages.detokenize, methods=["POST"]),
        Route("/health", pages.health),
        Route("/ready", pages.ready),
        Route("/version", pages.version),
        Route("/state", pages.state),
        Route("/metrics", pages.metrics),
        Route("/sd", Discovery(coordinator.membership).targets),
        *live_routes(),
    ]
    router = Router(routes, redirect_slashes=False, default=_unknown_route)
    paths, answers = {route.path for route in routes}, coordinator.metrics.http_requests

    def note_answer(path: str, status: int) -> None:
        # Labels are bounded: whatever else clients ask for is one route.
        answers.labels(path if path in paths else "other", str(status)).inc()

    guarded = HttpGuard(router, coordinator.keys, coordinator.options.protect_state)
    edge = RequestContextMiddleware(guarded, note_answer)
    origins = coordinator.options.cors_origins
    if not origins:
        return edge
    return CORSMiddleware(
        edge,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=[REQUEST_ID, "retry-after"],
    )


class _Calls:
    """The routes that generate."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._admission = coordinator.admission
        self._max_bytes = coordinator.options.max_request_bytes

    async def chat(self, request: Request) -> Response:
        """A conversation goes on."""
        fields = await read_fields(request, self._max_bytes)
        call = parse_chat(fields, request.state.request_id)
        return GeneratedResponse(self._admission, call, request.state.tenant)

    async def completion(self, request: Request) -> Response:
        """A text goes on."""
        fields = await read_fields(request, self._max_bytes)
        call = parse_completion(fields, request.state.request_id)
        return GeneratedResponse(self._admission, call, request.state.tenant)


async def _unknown_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise UnknownRouteError(path=scope["path"][:200])
