"""Owns the asynchronous client of a mesh's API.

A client generates text and asks for the mesh's state. Every call takes a deadline, failures are
`StagemeshRpcError`, and leaving an `infer` loop cancels its call on the server.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Final, Self, TypeVar
from uuid import uuid4

import grpc
import grpc.aio

from protos import inference_pb2, mesh_pb2
from protos.inference_pb2_grpc import InferenceStub
from protos.mesh_pb2_grpc import OperationsStub
from runtime.errors import InvalidRequestError
from runtime.protocol.inference_codec import (
    models_from_proto,
    prompt_to_proto,
    request_to_proto,
    update_from_proto,
)
from runtime.protocol.inference_types import GenerationRequest, Model, Prompt, Update
from runtime.rpc.channels import ChannelTls, dial
from stagemesh.client.completion import Completion, complete
from stagemesh.client.retry import RETRY_SECONDS, Attempts
from stagemesh.client.rpc_error import rpc_error
from stagemesh.client.state import MeshState, state_from_proto

DEFAULT_TARGET: Final = "127.0.0.1:50050"
# The coordinator's API for workers, which answers operators, too.
DEFAULT_MESH: Final = "127.0.0.1:50051"
CALL_TIMEOUT_SECONDS: Final = 5.0
# What a drain may take beyond its grace time: the end of an epoch, and of what loads.
DRAIN_SLACK_SECONDS: Final = 60.0

Answer = TypeVar("Answer")
UpdateCall = grpc.aio.UnaryStreamCall[inference_pb2.InferRequest, inference_pb2.InferResponse]
Metadata = tuple[tuple[str, str], ...]


class AsyncClient:
    """A connection to one mesh, for asyncio programs; use it as `async with`.

    async with AsyncClient("127.0.0.1:50050") as client:
        async for update in client.infer(GenerationRequest(prompts=("Once upon",))):
            ...
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        api_key: str | None = None,
        tls: ChannelTls | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """`tls` is for an API with a certificate: `trusting(Path("ca.pem"))`."""
        self.target = target
        self._retry_seconds = retry_seconds
        self._metadata = key_metadata(api_key)
        self._channel = dial(target, tls)
        self._inference = InferenceStub(self._channel)
        self._operations = OperationsStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection and every call on it."""
        await self._channel.close()

    async def infer(
        self, request: GenerationRequest, *, timeout_seconds: float | None = None
    ) -> AsyncGenerator[Update, None]:
        """Streams the updates of all prompts as they come; they carry their prompt's index.

        A server that goes away or has no room before the first of them is asked again, as
        `retry.py` says.
        """
        attempts = Attempts(timeout_seconds, self._retry_seconds)
        message = identified(request)
        call = self._begin(message, attempts)
        async with aclosing(self._updates(call, message, attempts)) as updates:
            async for update in updates:
                yield update

    async def generate(
        self, request: GenerationRequest, *, timeout_seconds: float | None = None
    ) -> tuple[Completion, ...]:
        """The whole answers of a request, by prompt and choice."""
        stream = self.infer(request, timeout_seconds=timeout_seconds)
        return complete([update async for update in stream])

    async def generate_many(
        self,
        requests: Iterable[GenerationRequest],
        *,
        max_concurrency: int = 16,
        timeout_seconds: float | None = None,
    ) -> AsyncGenerator[tuple[Completion, ...], None]:
        """The whole answers of many requests, in their order, so many of them under way at a time.

        The first that fails raises, and leaving the loop cancels all that are under way; each has
        `timeout_seconds` from its start.
        """
        running: deque[tuple[UpdateCall, AsyncGenerator[Update, None]]] = deque()
        try:
            for request in requests:
                message = identified(request)
                attempts = Attempts(timeout_seconds, self._retry_seconds)
                call = self._begin(message, attempts)
                running.append((call, self._updates(call, message, attempts)))
                if len(running) >= max_concurrency:
                    _, stream = running.popleft()
                    yield complete([update async for update in stream])
            while running:
                _, stream = running.popleft()
                yield complete([update async for update in stream])
        finally:
            for call, _ in running:
                call.cancel()

    def _begin(self, message: inference_pb2.InferRequest, attempts: Attempts) -> UpdateCall:
        """A call, which is under way from here on."""
        return self._inference.Infer(
            message, timeout=attempts.timeout_seconds, metadata=self._metadata
        )

    async def _updates(
        self, call: UpdateCall, message: inference_pb2.InferRequest, attempts: Attempts
    ) -> AsyncGenerator[Update, None]:
        has_updates = False
        while True:
            try:
                async for response in call:
                    has_updates = True
                    yield update_from_proto(response)
            except grpc.RpcError as error:
                failure = rpc_error(error, self.target)
                was_reached = bool(await call.initial_metadata())
            else:
                return
            finally:
                call.cancel()
            pause_seconds = attempts.pause_after(
                failure, was_reached=was_reached, has_updates=has_updates
            )
            await asyncio.sleep(pause_seconds)
            call = self._begin(message, attempts)

    async def state(self, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> MeshState:
        """What the mesh is doing now."""
        request = mesh_pb2.GetStateRequest()
        message = await self._answer(
            self._operations.GetState(request, timeout=timeout_seconds, metadata=self._metadata)
        )
        return state_from_proto(message)

    async def tokenize(
        self, prompt: Prompt, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> tuple[int, ...]:
        """The tokens of a prompt, as a generation would read it."""
        request = inference_pb2.TokenizeRequest(prompt=prompt_to_proto(prompt))
        message = await self._answer(
            self._inference.Tokenize(request, timeout=timeout_seconds, metadata=self._metadata)
        )
        return tuple(message.token_ids)

    async def detokenize(
        self, token_ids: Sequence[int], *, timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> str:
        """The text of tokens, special ones left out."""
        request = inference_pb2.DetokenizeRequest(token_ids=token_ids)
        message = await self._answer(
            self._inference.Detokenize(request, timeout=timeout_seconds, metadata=self._metadata)
        )
        return message.text

    async def models(self, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> tuple[Model, ...]:
        """What is served."""
        request = inference_pb2.ListModelsRequest()
        message = await self._answer(
            self._inference.ListModels(request, timeout=timeout_seconds, metadata=self._metadata)
        )
        return models_from_proto(message)

    async def cancel(
        self, request_id: str, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> int:
        """Ends the requests of that id, at whichever API they came in; how many there were."""
        request = inference_pb2.CancelRequest(request_id=request_id)
        message = await self._answer(
            self._inference.Cancel(request, timeout=timeout_seconds, metadata=self._metadata)
        )
        return message.num_cancelled

    async def drain(self, who: str, *, grace_seconds: float = 30.0) -> tuple[str, ...]:
        """Has a worker or a replica leave; the addresses of the workers that left.

        Only the coordinator's mesh address does that.
        """
        request = mesh_pb2.DrainRequest(target=who, grace_seconds=grace_seconds)
        timeout_seconds = grace_seconds + DRAIN_SLACK_SECONDS
        message = await self._answer(
            self._operations.Drain(request, timeout=timeout_seconds, metadata=self._metadata)
        )
        return tuple(message.workers)

    async def _answer(self, call: Awaitable[Answer]) -> Answer:
        try:
            return await call
        except grpc.RpcError as error:
            raise rpc_error(error, self.target, is_quick=True) from None


def identified(request: GenerationRequest) -> inference_pb2.InferRequest:
    """The request under an id, which all tries share."""
    return request_to_proto(replace(request, request_id=request.request_id or uuid4().hex))


def key_metadata(api_key: str | None) -> Metadata:
    """What tells an API whose call it is; raises `InvalidRequestError` for what can be no key."""
    if not api_key:
        return ()
    if not (api_key.isascii() and api_key.isprintable()):
        problem = "it has other characters than the keys that `stagemesh keys add` prints"
        raise InvalidRequestError(field="api_key", problem=problem)
    return (("authorization", f"Bearer {api_key}"),)
