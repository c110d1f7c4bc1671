"""The routes that generate nothing: models, tokenization, probes, metrics and the live page.

The live page at `/` polls `/state` once a second and chats through `/v1/chat/completions`. All its
files are in `live/`; none is loaded from elsewhere.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from google.protobuf.json_format import MessageToDict
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from coordinator.api.grpc.operations_service import snapshot
from coordinator.api.http.chat import parse_conversation
from coordinator.api.http.errors import error_response
from coordinator.api.http.json_reader import Fields, integer, read_fields, refuse
from coordinator.api.http.response_builder import JSON
from coordinator.coordinator import Coordinator
from coordinator.membership.worker_record import WorkerRecord
from coordinator.requests.prompt_tokenization import detokenize, token_ids
from coordinator.requests.validation import check_chat, check_model
from coordinator.tokenization.model_info import ServedModel
from runtime.checkpoints.model_store import served_name
from runtime.errors import NotReadyError, UnknownRouteError, UnsupportedParameterError
from runtime.protocol.inference_types import Prompt
from runtime.version import PROTOCOL_VERSION, VERSION

_OWNER: Final = "stagemesh"

_LIVE_FOLDER: Final = Path(__file__).parent / "live"
_LIVE_FILES: Final = frozenset(
    path.name for path in _LIVE_FOLDER.iterdir() if path.suffix != ".html"
)
_LIVE_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # The browser revalidates each file, so that the files of two builds are never mixed.
    "cache-control": "no-cache",
}


class UtilityRoutes:
    """The endpoints of one coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._max_bytes = coordinator.options.max_request_bytes

    def routes(self) -> list[Route]:
        """The endpoints with their paths."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/version", self.version),
            Route("/state", self.state),
            Route("/metrics", self.metrics),
            Route("/sd", self.metrics_targets),
            Route("/", _live_page),
            Route("/live/{name}", _live_file),
        ]

    async def models(self, request: Request) -> Response:
        """The one model that is served or loading, in OpenAI's shape."""
        coordinator = self._coordinator
        limits = coordinator.router.limits
        model = {
            "id": served_name(coordinator.options.model),
            "object": "model",
            "created": coordinator.started_at,
            "owned_by": _OWNER,
            "max_model_len": limits.max_model_len if limits else None,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def tokenize(self, request: Request) -> Response:
        """The token ids of a text or a conversation, as a generation request would tokenize it."""
        fields = await read_fields(request, self._max_bytes)
        prompt = _parse_prompt(fields)
        model = await self._model(fields)
        ids = await token_ids(prompt, model)
        longest = self._coordinator.admission.max_model_len(model)
        return JSONResponse({"count": len(ids), "max_model_len": longest, "tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids, special tokens left out."""
        fields = await read_fields(request, self._max_bytes)
        values = fields.items("tokens")
        if values is None:
            refuse("tokens", "is missing")
        ids = [integer(value, f"tokens[{index}]") for index, value in enumerate(values)]
        model = await self._model(fields)
        return JSONResponse({"prompt": await detokenize(ids, model)})

    async def embeddings(self, request: Request) -> Response:
        """Always refused: the served model generates text."""
        problem = "is not served: this model generates text; use /v1/chat/completions"
        raise UnsupportedParameterError(field="/v1/embeddings", problem=problem)

    async def health(self, request: Request) -> Response:
        """200 while the process is alive; constant, so that probes are cheap."""
        return JSONResponse({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        """200 if a request would be served now, else 503 with the phase or the failure."""
        coordinator = self._coordinator
        if coordinator.is_ready:
            return JSONResponse({"status": "ready"})
        phase = f"failed: {failure}" if (failure := coordinator.failure) else coordinator.phase
        return error_response(NotReadyError(phase=phase))

    async def version(self, request: Request) -> Response:
        """The build and the protocol version."""
        return JSONResponse({"version": VERSION, "protocol_version": PROTOCOL_VERSION})

    async def state(self, request: Request) -> Response:
        """The state of the mesh in protobuf's JSON mapping: 64-bit integers are strings."""
        state = MessageToDict(
            snapshot(self._coordinator),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        return JSONResponse(state, headers={"cache-control": "no-store"})

    async def metrics(self, request: Request) -> Response:
        """The metrics in Prometheus' text format, or in OpenMetrics if `accept` requests it."""
        for engine in self._coordinator.router.engines:
            engine.update_metrics()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        body = encode(self._coordinator.metrics.registry)
        return Response(body, headers={"content-type": content_type})

    async def metrics_targets(self, request: Request) -> Response:
        """The workers' metrics addresses in Prometheus' HTTP discovery format."""
        return JSONResponse(target_groups(self._coordinator.membership.workers))

    async def _model(self, fields: Fields) -> ServedModel:
        """The served model; refuses other models and unread fields."""
        requested = fields.text("model") or ""
        fields.end()
        model = await self._coordinator.admission.model()
        check_model(requested, model.name)
        return model


def _parse_prompt(fields: Fields) -> Prompt:
    """`prompt`, a text, or `messages`, a conversation."""
    content = fields.text("prompt")
    if content is None:
        chat = parse_conversation(fields)
        check_chat(chat)
        return chat
    if fields.pop("messages") is not None:
        refuse("messages", "cannot be sent with prompt; send one of them")
    return content


def target_groups(workers: Iterable[WorkerRecord]) -> list[JSON]:
    """One group for each worker; a worker without a reachable metrics address is left out."""
    identities = [w.identity for w in workers if w.identity.metrics_address]
    return [
        {
            "targets": [each.metrics_address],
            "labels": {"worker": each.address, "node": each.node, "device": each.device_kind},
        }
        for each in identities
    ]


async def _live_page(request: Request) -> Response:
    return FileResponse(_LIVE_FOLDER / "index.html", headers=_LIVE_HEADERS)


async def _live_file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _LIVE_FILES:
        raise UnknownRouteError(path=request.url.path[:200])
    return FileResponse(_LIVE_FOLDER / name, headers=_LIVE_HEADERS)
