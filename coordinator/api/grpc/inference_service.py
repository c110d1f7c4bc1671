"""Owns the gRPC API's calls for clients: metadata, deadlines, and who is asked; nothing else."""

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
    """Streams what was generated; a client that leaves or runs out of time is released at once."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    # Writes its responses, where the generated type yields them: a deadline cannot span a yield.
    async def Infer(  # type: ignore[override]
        self, request: inference_pb2.InferRequest, context: _Context
    ) -> None:
        """Generates for every prompt; updates of different prompts interleave."""
        seconds = context.time_remaining()
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                request_id = await _identify(request.request_id, context)
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
        """Answers as soon as the model's files are read; no stage is needed."""
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
        """Answers as soon as the model's files are read; no stage is needed."""
        model = await self._admission.model()
        check_model(request.model, model.name)
        text = await detokenize(tuple(request.token_ids), model)
        return inference_pb2.DetokenizeResponse(text=text)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: _Context
    ) -> inference_pb2.ListModelsResponse:
        """The one model that is served, once its files are read."""
        model = await self._admission.model()
        longest = self._admission.max_model_len(model)
        served = inference_pb2.Model(name=model.name, max_model_len=longest)
        return inference_pb2.ListModelsResponse(models=[served])

    async def Cancel(
        self, request: inference_pb2.CancelRequest, context: _Context
    ) -> inference_pb2.CancelResponse:
        """Never fails for a request that is over: its end and the call may cross."""
        num_cancelled = self._admission.cancel(request.request_id, CURRENT_TENANT.get())
        return inference_pb2.CancelResponse(num_cancelled=num_cancelled)

    async def _stream(
        self,
        request: GenerationRequest,
        timeout_seconds: float | None,
        context: _Context,
        has_timed_out: Callable[[], bool],
    ) -> None:
        # gRPC ends the call at its deadline, too, and may be the first to do so.
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


async def _identify(asked: str, context: _Context) -> str:
    """The request's id: from the message, the metadata or made here; it is echoed at once.

    Raises `InvalidRequestError` for one that neither metadata nor logs could hold.
    """
    metadata = dict(context.invocation_metadata() or ())
    request_id = asked or str(metadata.get(REQUEST_ID_KEY, "")) or uuid.uuid4().hex
    check_request_id(request_id)
    await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
    return request_id
