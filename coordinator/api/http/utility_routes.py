"""Owns the routes that generate nothing: models, tokens, probes, metrics."""

from typing import Final

from google.protobuf.json_format import MessageToDict
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coordinator.api.grpc.operations_service import snapshot
from coordinator.api.http.chat import take_chat
from coordinator.api.http.errors import error_response
from coordinator.api.http.json_reader import Fields, integer, read_fields, refuse
from coordinator.coordinator import Coordinator
from coordinator.requests.prompt_tokenization import detokenize, token_ids
from coordinator.requests.validation import check_model
from coordinator.tokenization.model_info import ServedModel
from runtime.checkpoints.model_store import served_name
from runtime.errors import NotReadyError, UnsupportedParameterError
from runtime.protocol.inference_types import Prompt
from runtime.version import PROTOCOL_VERSION, VERSION

_OWNER: Final = "stagemesh"


class UtilityRoutes:
    """Endpoints over one coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._max_bytes = coordinator.options.max_request_bytes

    async def models(self, request: Request) -> Response:
        """The one model that is or will be served."""
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
        """The ids of a text or of a conversation, as a request for generation would read it."""
        fields = await read_fields(request, self._max_bytes)
        prompt = _prompt(fields)
        model = await self._model(fields)
        ids = await token_ids(prompt, model)
        longest = self._coordinator.admission.max_model_len(model)
        return JSONResponse({"count": len(ids), "max_model_len": longest, "tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        fields = await read_fields(request, self._max_bytes)
        values = fields.items("tokens")
        if values is None:
            refuse("tokens", "is missing")
        ids = [integer(value, f"tokens[{index}]") for index, value in enumerate(values)]
        model = await self._model(fields)
        return JSONResponse({"prompt": await detokenize(ids, model)})

    async def embeddings(self, request: Request) -> Response:
        """Refused."""
        problem = "is not served: this model generates text; use /v1/chat/completions"
        raise UnsupportedParameterError(field="/v1/embeddings", problem=problem)

    async def health(self, request: Request) -> Response:
        """The process is alive. Constant, so that probes cost nothing."""
        return JSONResponse({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        """Whether a request would be served now."""
        coordinator = self._coordinator
        if coordinator.is_ready:
            return JSONResponse({"status": "ready"})
        phase = f"failed: {failure}" if (failure := coordinator.failure) else coordinator.phase
        return error_response(NotReadyError(phase=phase))

    async def version(self, request: Request) -> Response:
        """This build."""
        return JSONResponse({"version": VERSION, "protocol_version": PROTOCOL_VERSION})

    async def state(self, request: Request) -> Response:
        """The mesh, in protobuf's JSON: 64-bit integers are strings."""
        state = MessageToDict(
            snapshot(self._coordinator),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        return JSONResponse(state, headers={"cache-control": "no-store"})

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text, or OpenMetrics for who asks for it."""
        for engine in self._coordinator.router.engines:
            engine.observe_scheduler()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        body = encode(self._coordinator.metrics.registry)
        return Response(body, headers={"content-type": content_type})

    async def _model(self, fields: Fields) -> ServedModel:
        """The served model, when nothing is left to refuse."""
        asked = fields.text("model") or ""
        fields.end()
        model = await self._coordinator.admission.model()
        check_model(asked, model.name)
        return model


def _prompt(fields: Fields) -> Prompt:
    """`prompt`, a text, or `messages`, a conversation."""
    content = fields.text("prompt")
    if content is None:
        return take_chat(fields)
    if fields.take("messages") is not None:
        refuse("messages", "cannot be sent with prompt; send one of them")
    return content
