"""A scripted API whose answers depend on the prompt, for tests of clients."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc

from protos import inference_pb2, inference_pb2_grpc, mesh_pb2, mesh_pb2_grpc
from runtime.errors import QueueFullError

Context = grpc.aio.ServicerContext[
    inference_pb2.InferRequest, AsyncIterator[inference_pb2.InferResponse]
]
StateContext = grpc.aio.ServicerContext[
    mesh_pb2.GetStateRequest, Awaitable[mesh_pb2.GetStateResponse]
]
AnyContext = grpc.aio.ServicerContext[Any, Any]


class EchoServer(inference_pb2_grpc.InferenceServicer, mesh_pb2_grpc.OperationsServicer):
    """Echoes the prompt letter by letter; `hang` then waits, `full` is rejected, `busy` once."""

    def __init__(self) -> None:
        self.asked_ids: list[str] = []
        self.abandoned = asyncio.Event()
        self.num_open = 0
        self.most_open = 0

    async def Infer(  # noqa: N802
        self, request: inference_pb2.InferRequest, context: Context
    ) -> AsyncIterator[inference_pb2.InferResponse]:
        text = request.prompts[0].text
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        self.asked_ids.append(request.request_id)
        if text == "full" or (text == "busy" and len(self.asked_ids) == 1):
            self.num_open -= 1
            raise QueueFullError(num_waiting=3, limit=3)
        try:
            for letter in text:
                yield inference_pb2.InferResponse(text=letter)
            if text == "hang":
                await asyncio.Event().wait()
        finally:
            self.num_open -= 1
            self.abandoned.set()

    async def Tokenize(  # noqa: N802
        self, request: inference_pb2.TokenizeRequest, context: AnyContext
    ) -> inference_pb2.TokenizeResponse:
        return inference_pb2.TokenizeResponse(token_ids=map(ord, request.prompt.text))

    async def Detokenize(  # noqa: N802
        self, request: inference_pb2.DetokenizeRequest, context: AnyContext
    ) -> inference_pb2.DetokenizeResponse:
        return inference_pb2.DetokenizeResponse(text="".join(map(chr, request.token_ids)))

    async def ListModels(  # noqa: N802
        self, request: inference_pb2.ListModelsRequest, context: AnyContext
    ) -> inference_pb2.ListModelsResponse:
        models = [inference_pb2.Model(name="tiny", max_model_len=8)]
        return inference_pb2.ListModelsResponse(models=models)

    async def Cancel(  # noqa: N802
        self, request: inference_pb2.CancelRequest, context: AnyContext
    ) -> inference_pb2.CancelResponse:
        return inference_pb2.CancelResponse(num_cancelled=len(request.request_id))

    async def Drain(  # noqa: N802
        self, request: mesh_pb2.DrainRequest, context: AnyContext
    ) -> mesh_pb2.DrainResponse:
        return mesh_pb2.DrainResponse(workers=[request.target])

    async def GetState(  # noqa: N802
        self, request: mesh_pb2.GetStateRequest, context: StateContext
    ) -> mesh_pb2.GetStateResponse:
        return mesh_pb2.GetStateResponse(model="tiny")
