"""Owns the asynchronous client of a mesh's door.

A client generates text and asks for the mesh's state. Every call takes a deadline, failures are
`StagemeshRpcError`, and leaving an `infer` loop cancels its call on the server.
"""

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Final, Self

import grpc

from protos import mesh_pb2
from protos.inference_pb2_grpc import InferenceStub
from protos.mesh_pb2_grpc import OperationsStub
from runtime.rpc import dial
from stagemesh.generation import GenerationRequest, Update, request_to_proto, update_from_proto
from stagemesh.rpc_error import rpc_error
from stagemesh.state import MeshState, state_from_proto

DEFAULT_TARGET: Final = "127.0.0.1:50050"
STATE_TIMEOUT_SECONDS: Final = 5.0


class AsyncClient:
    """A connection to one mesh, for asyncio programs; use it as `async with`.

    async with AsyncClient("127.0.0.1:50050") as client:
        async for update in client.infer(GenerationRequest(prompts=("Once upon",))):
            ...
    """

    def __init__(self, target: str = DEFAULT_TARGET) -> None:
        self.target = target
        self._channel = dial(target)
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
        """Streams the updates of all prompts as they come; they carry their prompt's index."""
        call = self._inference.Infer(request_to_proto(request), timeout=timeout_seconds)
        try:
            async for message in call:
                yield update_from_proto(message)
        except grpc.RpcError as error:
            raise rpc_error(error, self.target) from None
        finally:
            call.cancel()

    async def state(self, *, timeout_seconds: float = STATE_TIMEOUT_SECONDS) -> MeshState:
        """What the mesh is doing now."""
        request = mesh_pb2.GetStateRequest()
        try:
            message = await self._operations.GetState(request, timeout=timeout_seconds)
        except grpc.RpcError as error:
            raise rpc_error(error, self.target) from None
        return state_from_proto(message)
