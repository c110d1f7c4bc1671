"""The asynchronous client of a mesh's gRPC API.

Every call takes a deadline and raises `StagemeshRpcError` on failure. Leaving an `infer` loop
cancels the call on the server.
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
# The coordinator's address for workers and for operators' commands.
DEFAULT_MESH: Final = "127.0.0.1:50051"
CALL_TIMEOUT_SECONDS: Final = 5.0
# The time of a drain beyond its grace time: the epoch ends, and loading is cancelled.
DRAIN_SLACK_SECONDS: Final = 60.0

ResponseT = TypeVar("ResponseT")
UpdateCall = grpc.aio.UnaryStreamCall[inference_pb2.InferRequest, inference_pb2.InferResponse]
Metadata = tuple[tuple[str, str], ...]


class AsyncClient:
    """A connection to one mesh, for asyncio programs; use it as an async context manager.

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
        """`tls` is for APIs with a certificate, such as `trusting(Path("ca.pem"))`.

        Failed generations are retried for `retry_seconds`, as `retry.py` describes.
        """
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
        """Closes the connection and cancels its calls."""
        await self._channel.close()

    async def infer(
        self, request: GenerationRequest, *, timeout_seconds: float | None = None
    ) -> AsyncGenerator[Update, None]:
        """Streams the updates of all prompts as they arrive, each with its prompt's index.

        `timeout_seconds` covers all attempts. Raises `StagemeshRpcError`.
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
        """Returns the complete answers of a request, ordered by prompt and choice."""
        stream = self.infer(request, timeout_seconds=timeout_seconds)
        return complete([update async for update in stream])

    async def generate_many(
        self,
        requests: Iterable[GenerationRequest],
        *,
        max_concurrency: int = 16,
        timeout_seconds: float | None = None,
    ) -> AsyncGenerator[tuple[Completion, ...], None]:
        """Yields the complete answers of many requests in order, `max_concurrency` at a time.

        Each request has `timeout_seconds` from its start. The first failure raises; a failure, or
        leaving the loop, cancels all running requests.
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
        """Starts a call."""
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
        """Returns the state of the mesh."""
        request = mesh_pb2.GetStateRequest()
        message = await self._call(
            self._operations.GetState(request, timeout=timeout_seconds, metadata=self._metadata)
        )
        return state_from_proto(message)

    async def tokenize(
        self, prompt: Prompt, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> tuple[int, ...]:
        """Returns the token ids of a prompt, as in a generation."""
        request = inference_pb2.TokenizeRequest(prompt=prompt_to_proto(prompt))
        message = await self._call(
            self._inference.Tokenize(request, timeout=timeout_seconds, metadata=self._metadata)
        )
        return tuple(message.token_ids)

    async def detokenize(
        self, token_ids: Sequence[int], *, timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> str:
        """Returns the text of tokens without special tokens."""
        request = inference_pb2.DetokenizeRequest(token_ids=token_ids)
        message = await self._call(
            self._inference.Detokenize(request, timeout=timeout_seconds, metadata=self._metadata)
        )
        return message.text

    async def models(self, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> tuple[Model, ...]:
        """Returns the served models."""
        request = inference_pb2.ListModelsRequest()
        message = await self._call(
            self._inference.ListModels(request, timeout=timeout_seconds, metadata=self._metadata)
        )
        return models_from_proto(message)

    async def cancel(
        self, request_id: str, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> int:
        """Cancels the requests with this id, of either API; returns their number."""
        request = inference_pb2.CancelRequest(request_id=request_id)
        message = await self._call(
            self._inference.Cancel(request, timeout=timeout_seconds, metadata=self._metadata)
        )
        return message.num_cancelled

    async def drain(self, target: str, *, grace_seconds: float = 30.0) -> tuple[str, ...]:
        """Removes a worker (address or id) or a replica (number) from the mesh without loss.

        Returns the addresses of the workers that left. Only the coordinator's mesh address accepts
        this call.
        """
        request = mesh_pb2.DrainRequest(target=target, grace_seconds=grace_seconds)
        timeout_seconds = grace_seconds + DRAIN_SLACK_SECONDS
        message = await self._call(
            self._operations.Drain(request, timeout=timeout_seconds, metadata=self._metadata)
        )
        return tuple(message.workers)

    async def _call(self, call: Awaitable[ResponseT]) -> ResponseT:
        try:
            return await call
        except grpc.RpcError as error:
            raise rpc_error(error, self.target, is_quick=True) from None


def identified(request: GenerationRequest) -> inference_pb2.InferRequest:
    """The message of `request`, with an id that all attempts share."""
    return request_to_proto(replace(request, request_id=request.request_id or uuid4().hex))


def key_metadata(api_key: str | None) -> Metadata:
    """The authorization header; raises `InvalidRequestError` for an impossible key."""
    if not api_key:
        return ()
    if not (api_key.isascii() and api_key.isprintable()):
        problem = "it has invalid characters; copy the key that `stagemesh keys add` printed"
        raise InvalidRequestError(field="api_key", problem=problem)
    return (("authorization", f"Bearer {api_key}"),)
