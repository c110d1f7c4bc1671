"""The Inference service: metadata, deadlines and conversion of the gRPC API's calls."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import grpc.aio

from coordinator.admission.admission import Admission
from coordinator.requests.prompt_tokenization import detokenize, token_ids
from coordinator.requests.validation import check_counts, check_model, check_request_id
from coordinator.security.authentication import CURRENT_TENANT
from protos import inference_pb2, inference_pb2_grpc
from runtime.errors import DeadlineExceededError, EmptyPromptError
from runtime.protocol.inference_codec import (
    prompt_from_proto,
    request_from_proto,
    update_to_proto,
)
from runtime.protocol.inference_types import GenerationRequest

REQUEST_ID_KEY = "x-request-id"

_Context = grpc.aio.ServicerContext[Any, Any]


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """Streams generated output; a disconnect or a deadline cancels its request at once."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    # Writes its responses instead of yielding them: an asyncio.timeout cannot span a yield.
    async def Infer(  # type: ignore[override]
        self, request: inference_pb2.InferRequest, context: _Context
    ) -> None:
        """Generates for all prompts; updates of different prompts interleave."""
        seconds = context.time_remaining()
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                request_id = await _request_id(request.request_id, context)
                _check_counts(request, self._admission.max_prompts)
                await self._stream(
                    request_from_proto(request, request_id), seconds, context, timeout.expired
                )
        except TimeoutError:
            if timeout.expired():
                raise DeadlineExceededError from None
            raise

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: _Context
    ) -> inference_pb2.TokenizeResponse:
        """Needs the model's files only, no stage."""
        _check_counts(inference_pb2.InferRequest(prompts=[request.prompt]), max_prompts=1)
        model = await self._admission.model()
        check_model(request.model, model.name)
        ids = await token_ids(prompt_from_proto(request.prompt), model)
        if not ids:
            raise EmptyPromptError(index=0)
        longest = self._admission.max_model_len(model)
        return inference_pb2.TokenizeResponse(token_ids=ids, max_model_len=longest)

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: _Context
    ) -> inference_pb2.DetokenizeResponse:
        """Needs the model's files only, no stage."""
        model = await self._admission.model()
        check_model(request.model, model.name)
        text = await detokenize(tuple(request.token_ids), model)
        return inference_pb2.DetokenizeResponse(text=text)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: _Context
    ) -> inference_pb2.ListModelsResponse:
        """The served model, once its files are read."""
        model = await self._admission.model()
        longest = self._admission.max_model_len(model)
        served = inference_pb2.Model(name=model.name, max_model_len=longest)
        return inference_pb2.ListModelsResponse(models=[served])

    async def Cancel(
        self, request: inference_pb2.CancelRequest, context: _Context
    ) -> inference_pb2.CancelResponse:
        """Returns 0 for a request that has ended: its end and the call may cross."""
        num_cancelled = self._admission.cancel(request.request_id, CURRENT_TENANT.get())
        return inference_pb2.CancelResponse(num_cancelled=num_cancelled)

    async def _stream(
        self,
        request: GenerationRequest,
        timeout_seconds: float | None,
        context: _Context,
        has_timed_out: Callable[[], bool],
    ) -> None:
        # gRPC also ends the call at its deadline, possibly before the timeout.
        def is_late() -> bool:
            return has_timed_out() or context.time_remaining() == 0

        async with self._admission.generate(
            request, CURRENT_TENANT.get(), "grpc", timeout_seconds, is_late
        ) as output:
            async for update in output:
                await context.write(update_to_proto(update))


def _check_counts(message: inference_pb2.InferRequest, max_prompts: int) -> None:
    """Refuses a message that would take too long to convert; raises `InvalidRequestError`."""
    prompts = message.prompts[: max_prompts + 1]
    check_counts(
        num_prompts=len(message.prompts),
        max_prompts=max_prompts,
        num_messages=sum(len(prompt.chat.messages) for prompt in prompts),
        num_token_ids=sum(len(prompt.token_ids.ids) for prompt in prompts),
        num_stop_token_ids=len(message.stop_token_ids),
    )


async def _request_id(requested: str, context: _Context) -> str:
    """The id in the message or the metadata, else a new one; sends it as initial metadata.

    Raises `InvalidRequestError` for an id that is too long or not printable.
    """
    metadata = dict(context.invocation_metadata() or ())
    request_id = requested or str(metadata.get(REQUEST_ID_KEY, "")) or uuid.uuid4().hex
    check_request_id(request_id)
    await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
    return request_id
