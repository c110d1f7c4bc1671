"""The blocking client of a mesh's gRPC API, with the methods of `async_client`.

The generated stubs are typed for asyncio only, so this module names the RPCs itself.
"""

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

import grpc
from google.protobuf.message import Message

from protos import inference_pb2, mesh_pb2
from runtime.protocol.inference_codec import (
    models_from_proto,
    prompt_to_proto,
    update_from_proto,
)
from runtime.protocol.inference_types import GenerationRequest, Model, Prompt, Update
from runtime.rpc.channels import ChannelTls, dial_blocking
from stagemesh.client.async_client import (
    CALL_TIMEOUT_SECONDS,
    DEFAULT_TARGET,
    DRAIN_SLACK_SECONDS,
    identified,
    key_metadata,
)
from stagemesh.client.completion import Completion, complete
from stagemesh.client.retry import RETRY_SECONDS, Attempts
from stagemesh.client.rpc_error import rpc_error
from stagemesh.client.state import MeshState, state_from_proto

ResponseT = TypeVar("ResponseT", bound=Message)


class UpdateCall(Protocol):
    """A running call of `Infer`, as returned by grpcio."""

    def __iter__(self) -> Iterator[inference_pb2.InferResponse]: ...

    def cancel(self) -> object: ...

    def initial_metadata(self) -> Sequence[object] | None: ...


class Client:
    """A connection to one mesh, for programs without an event loop; use it as a context manager."""

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
        self._channel = dial_blocking(target, tls)
        self._infer = self._channel.unary_stream(
            "/stagemesh.v1.Inference/Infer",
            inference_pb2.InferRequest.SerializeToString,
            inference_pb2.InferResponse.FromString,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and cancels its calls."""
        self._channel.close()

    def infer(
        self, request: GenerationRequest, *, timeout_seconds: float | None = None
    ) -> Generator[Update, None, None]:
        """Streams the updates of all prompts as they arrive, each with its prompt's index.

        `timeout_seconds` covers all attempts. Raises `StagemeshRpcError`.
        """
        attempts = Attempts(timeout_seconds, self._retry_seconds)
        message = identified(request)
        call = self._begin(message, attempts)
        yield from self._updates(call, message, attempts)

    def generate(
        self, request: GenerationRequest, *, timeout_seconds: float | None = None
    ) -> tuple[Completion, ...]:
        """Returns the complete answers of a request, ordered by prompt and choice."""
        stream = self.infer(request, timeout_seconds=timeout_seconds)
        return complete(stream)

    def generate_many(
        self,
        requests: Iterable[GenerationRequest],
        *,
        max_concurrency: int = 16,
        timeout_seconds: float | None = None,
    ) -> Generator[tuple[Completion, ...], None, None]:
        """Yields the complete answers of many requests in order, `max_concurrency` at a time.

        Each request has `timeout_seconds` from its start. The first failure raises; a failure, or
        leaving the loop, cancels all running requests.
        """
        running: deque[tuple[UpdateCall, Generator[Update, None, None]]] = deque()
        try:
            for request in requests:
                message = identified(request)
                attempts = Attempts(timeout_seconds, self._retry_seconds)
                call = self._begin(message, attempts)
                running.append((call, self._updates(call, message, attempts)))
                if len(running) >= max_concurrency:
                    _, stream = running.popleft()
                    yield complete(stream)
            while running:
                _, stream = running.popleft()
                yield complete(stream)
        finally:
            for call, _ in running:
                call.cancel()

    def _begin(self, message: inference_pb2.InferRequest, attempts: Attempts) -> UpdateCall:
        """Starts a call."""
        return self._infer(message, timeout=attempts.timeout_seconds, metadata=self._metadata)

    def _updates(
        self, call: UpdateCall, message: inference_pb2.InferRequest, attempts: Attempts
    ) -> Generator[Update, None, None]:
        has_updates = False
        while True:
            try:
                for response in call:
                    has_updates = True
                    yield update_from_proto(response)
            except grpc.RpcError as error:
                failure = rpc_error(error, self.target)
                was_reached = bool(call.initial_metadata())
            else:
                return
            finally:
                call.cancel()
            pause_seconds = attempts.pause_after(
                failure, was_reached=was_reached, has_updates=has_updates
            )
            time.sleep(pause_seconds)
            call = self._begin(message, attempts)

    def state(self, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> MeshState:
        """Returns the state of the mesh."""
        request = mesh_pb2.GetStateRequest()
        method = "Operations/GetState"
        message = self._call(method, request, mesh_pb2.GetStateResponse, timeout_seconds)
        return state_from_proto(message)

    def tokenize(
        self, prompt: Prompt, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> tuple[int, ...]:
        """Returns the token ids of a prompt, as in a generation."""
        request = inference_pb2.TokenizeRequest(prompt=prompt_to_proto(prompt))
        method = "Inference/Tokenize"
        message = self._call(method, request, inference_pb2.TokenizeResponse, timeout_seconds)
        return tuple(message.token_ids)

    def detokenize(
        self, token_ids: Sequence[int], *, timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> str:
        """Returns the text of tokens without special tokens."""
        request = inference_pb2.DetokenizeRequest(token_ids=token_ids)
        method = "Inference/Detokenize"
        message = self._call(method, request, inference_pb2.DetokenizeResponse, timeout_seconds)
        return message.text

    def models(self, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> tuple[Model, ...]:
        """Returns the served models."""
        request = inference_pb2.ListModelsRequest()
        method = "Inference/ListModels"
        message = self._call(method, request, inference_pb2.ListModelsResponse, timeout_seconds)
        return models_from_proto(message)

    def cancel(self, request_id: str, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> int:
        """Cancels the requests with this id, of either API; returns their number."""
        request = inference_pb2.CancelRequest(request_id=request_id)
        method = "Inference/Cancel"
        message = self._call(method, request, inference_pb2.CancelResponse, timeout_seconds)
        return message.num_cancelled

    def drain(self, target: str, *, grace_seconds: float = 30.0) -> tuple[str, ...]:
        """Removes a worker (address or id) or a replica (number) from the mesh without loss.

        Returns the addresses of the workers that left. Only the coordinator's mesh address accepts
        this call.
        """
        request = mesh_pb2.DrainRequest(target=target, grace_seconds=grace_seconds)
        timeout_seconds = grace_seconds + DRAIN_SLACK_SECONDS
        method = "Operations/Drain"
        message = self._call(method, request, mesh_pb2.DrainResponse, timeout_seconds)
        return tuple(message.workers)

    def _call(
        self, method: str, request: Message, response: type[ResponseT], timeout_seconds: float
    ) -> ResponseT:
        call = self._channel.unary_unary(
            f"/stagemesh.v1.{method}", type(request).SerializeToString, response.FromString
        )
        try:
            return call(request, timeout=timeout_seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            raise rpc_error(error, self.target, is_quick=True) from None
