"""The worker's gRPC services: Stage, which translates RPCs into calls of `Worker`, and health.

Errors become gRPC statuses in `runtime/rpc/channels.py`. Methods that hold a task group write
their responses instead of yielding them, because task groups must not span a `yield`; the
generated types know only the yielding style.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from protos import stage_pb2, stage_pb2_grpc
from runtime.rpc.peer_authorization import check_caller
from runtime.rpc.tls import Role
from stage_worker.device.progress import with_progress
from stage_worker.transport.frame_codec import ForwardContext, add_forward_handler
from stage_worker.worker import Worker

# SERVING under this name means joined; under the empty name, alive.
STAGE_SERVICE = stage_pb2.DESCRIPTOR.services_by_name["Stage"].full_name

_STATUSES = health_pb2.HealthCheckResponse


class StageService(stage_pb2_grpc.StageServicer):
    """The RPCs of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the service; `Forward` uses the codec that does not copy payloads."""
        stage_pb2_grpc.add_StageServicer_to_server(self, server)
        add_forward_handler(server, self.Forward)

    async def Load(  # type: ignore[override]
        self,
        request: stage_pb2.LoadRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """Streams progress in bytes; the last message has the report."""
        total_bytes = 0

        async def send(done: int, total: int) -> None:
            nonlocal total_bytes
            total_bytes = total
            await context.write(stage_pb2.LoadProgress(done_bytes=done, total_bytes=total))

        report = await with_progress(
            lambda progress: self._worker.load(request.assignment, progress), send
        )
        await context.write(
            stage_pb2.LoadProgress(done_bytes=total_bytes, total_bytes=total_bytes, report=report)
        )

    async def RecordCanary(  # type: ignore[override]
        self,
        request: stage_pb2.RecordCanaryRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """Streams progress in layers; the last message has the log-probabilities."""

        async def send(done: int, total: int) -> None:
            await context.write(stage_pb2.RecordCanaryProgress(done_layers=done, num_layers=total))

        ids, logprobs = await with_progress(
            lambda progress: self._worker.reference_logprobs(request, progress), send
        )
        await context.write(stage_pb2.RecordCanaryProgress(top_ids=ids, top_logprobs=logprobs))

    async def OpenEpoch(
        self, request: stage_pb2.OpenEpochRequest, _: Any
    ) -> stage_pb2.OpenEpochResponse:
        """Responds once the epoch accepts steps."""
        await self._worker.open_epoch(request)
        return stage_pb2.OpenEpochResponse()

    async def Forward(  # type: ignore[override]
        self, _: Any, context: ForwardContext
    ) -> None:
        """Receives one sender's steps for the epoch that is open when the stream begins."""
        session = self._worker.session()
        sender = Role.COORDINATOR if session.is_first else Role.WORKER
        check_caller(context, frozenset({sender}), "this stage's Forward")
        await session.serve_sender(context)

    async def Results(
        self, request: stage_pb2.ResultsRequest, _: Any
    ) -> AsyncIterator[stage_pb2.StepResult]:
        """Streams all results from the epoch's first step until it ends."""
        async with aclosing(self._worker.results(request.epoch).messages()) as messages:
            async for message in messages:
                yield message

    async def Status(self, request: stage_pb2.StatusRequest, _: Any) -> stage_pb2.StatusResponse:
        """Responds at any time, also during a load."""
        return self._worker.status()

    async def Unload(self, request: stage_pb2.UnloadRequest, _: Any) -> stage_pb2.UnloadResponse:
        """Responds once the weights are freed."""
        await self._worker.unload()
        return stage_pb2.UnloadResponse()


class WorkerHealth:
    """The health service of one worker, which has not joined at first."""

    def __init__(self) -> None:
        self.is_joined = False
        self._servicer = health.aio.HealthServicer()

    async def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the service on `server`."""
        await self.set_joined(False)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_joined(self, is_joined: bool) -> None:
        """Publishes whether the worker has joined a mesh."""
        self.is_joined = is_joined
        status = _STATUSES.SERVING if is_joined else _STATUSES.NOT_SERVING
        await self._servicer.set(STAGE_SERVICE, status)
