"""Owns the blocking client of a mesh's door, for programs without an event loop.

It says and hears what `stagemesh.client` does. The generated stubs are typed for asyncio alone, so
it names the two methods itself.
"""

from collections.abc import Generator
from types import TracebackType
from typing import Self

import grpc

from protos import inference_pb2, mesh_pb2
from runtime.rpc import CHANNEL_OPTIONS
from stagemesh.client import DEFAULT_TARGET, STATE_TIMEOUT_SECONDS
from stagemesh.generation import GenerationRequest, Update, request_to_proto, update_from_proto
from stagemesh.rpc_error import rpc_error
from stagemesh.state import MeshState, state_from_proto


class Client:
    """A connection to one mesh, for programs without an event loop; use it as `with`."""

    def __init__(self, target: str = DEFAULT_TARGET) -> None:
        self.target = target
        self._channel = grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        self._infer = self._channel.unary_stream(
            "/stagemesh.v1.Inference/Infer",
            inference_pb2.InferRequest.SerializeToString,
            inference_pb2.InferResponse.FromString,
        )
        self._get_state = self._channel.unary_unary(
            "/stagemesh.v1.Operations/GetState",
            mesh_pb2.GetStateRequest.SerializeToString,
            mesh_pb2.GetStateResponse.FromString,
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
        """Ends the connection and every call on it."""
        self._channel.close()

    def infer(
        self, request: GenerationRequest, *, timeout_seconds: float | None = None
    ) -> Generator[Update, None, None]:
        """Streams the updates of all prompts as they come; they carry their prompt's index."""
        call = self._infer(request_to_proto(request), timeout=timeout_seconds)
        try:
            for message in call:
                yield update_from_proto(message)
        except grpc.RpcError as error:
            raise rpc_error(error, self.target) from None
        finally:
            call.cancel()

    def state(self, *, timeout_seconds: float = STATE_TIMEOUT_SECONDS) -> MeshState:
        """What the mesh is doing now."""
        request = mesh_pb2.GetStateRequest()
        try:
            message = self._get_state(request, timeout=timeout_seconds)
        except grpc.RpcError as error:
            raise rpc_error(error, self.target) from None
        return state_from_proto(message)
