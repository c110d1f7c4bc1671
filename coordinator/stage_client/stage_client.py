"""Calls the Stage service of one worker, with typed values and a deadline for each wait.

It decides nothing; errors state whether the worker refused (another attempt is pointless), failed
or could not be reached.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar, cast

import grpc
import grpc.aio

from coordinator.membership.assignment import Assignment, CanaryReference, LoadReport
from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.stage_client.failures import call_error, raise_after_grace
from coordinator.stage_client.stage_codec import (
    EpochId,
    EpochPlan,
    RankPosition,
    assignment_to_proto,
    open_epoch_request,
)
from protos import stage_pb2, stage_pb2_grpc
from runtime.errors import FingerprintMismatchError, WorkerDiedError, WorkerRefusedError
from runtime.rpc.channels import dial
from runtime.rpc.tls import Role

ProgressFn = Callable[[int, int], None]
ForwardCall = grpc.aio.StreamStreamCall[stage_pb2.Frame, stage_pb2.Credit]
ResultsCall = grpc.aio.UnaryStreamCall[stage_pb2.ResultsRequest, stage_pb2.StepResult]

RequestT = TypeVar("RequestT")
ProgressT = TypeVar("ProgressT")

# A worker answers `Status` at any time, also while it loads.
STATUS_SECONDS: Final = 5.0


class StageClient:
    """Calls one worker over a channel of its own; the only writer of the record's `held`."""

    def __init__(
        self,
        worker: WorkerRecord,
        channel: grpc.aio.Channel,
        call_seconds: float,
        progress_seconds: float,
    ) -> None:
        self.worker = worker
        self._stub = stage_pb2_grpc.StageStub(channel)
        self._call_seconds = call_seconds
        self._progress_seconds = progress_seconds

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, worker: WorkerRecord, options: CoordinatorOptions
    ) -> AsyncIterator["StageClient"]:
        """A client whose channel, with every call left open on it, is closed at the end."""
        tls = None if options.mesh_tls is None else options.mesh_tls.credentials_for(Role.WORKER)
        async with dial(worker.identity.address, tls) as channel:
            yield cls(worker, channel, options.call_seconds, options.load_progress_seconds)

    async def load(self, assignment: Assignment, progress: ProgressFn) -> LoadReport:
        """Makes the worker load its part; `progress` gets done and total bytes.

        Raises `WorkerRefusedError` if the worker's files are not those of the assignment.
        """
        self.worker.held = None
        request = stage_pb2.LoadRequest(assignment=assignment_to_proto(assignment))
        reports: list[stage_pb2.LoadReport] = []

        def read(message: stage_pb2.LoadProgress) -> None:
            progress(message.done_bytes, message.total_bytes)
            if message.HasField("report"):
                reports.append(message.report)

        await self._read_progress(self._stub.Load(request), read)
        if not reports:
            raise WorkerDiedError(worker=self.worker.name, detail="loading ended without a report")
        report = reports[-1]
        if report.weights_fingerprint != assignment.weights_fingerprint:
            mismatch = FingerprintMismatchError(
                expected=assignment.weights_fingerprint, actual=report.weights_fingerprint
            )
            raise WorkerRefusedError(worker=self.worker.name, reason=str(mismatch))
        self.worker.held = assignment
        return LoadReport(
            num_kv_blocks=report.num_kv_blocks,
            weights_bytes=report.weights_bytes,
            peak_rss_bytes=report.peak_rss_bytes,
            load_seconds=report.load_seconds,
            weights_fingerprint=report.weights_fingerprint,
        )

    async def held_report(self, assignment: Assignment) -> LoadReport | None:
        """The report of a worker that holds exactly this part already, else None.

        The first call of every attempt: it finds workers that cannot be reached.
        """
        timeout = min(STATUS_SECONDS, self._call_seconds)
        try:
            status = await self._stub.Status(stage_pb2.StatusRequest(), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise call_error(error, self.worker.name) from None
        is_loaded = status.state in (
            stage_pb2.WORKER_STATE_LOADED,
            stage_pb2.WORKER_STATE_SERVING,
        )
        if not is_loaded or status.assignment != assignment_to_proto(assignment):
            return None
        self.worker.held = assignment
        return LoadReport(
            num_kv_blocks=status.num_kv_blocks,
            weights_bytes=status.weights_bytes,
            peak_rss_bytes=status.peak_rss_bytes,
            load_seconds=0.0,
            weights_fingerprint=assignment.weights_fingerprint,
        )

    async def record_canary(
        self,
        assignment: Assignment,
        token_ids: tuple[int, ...],
        num_logprobs: int,
        progress: ProgressFn,
    ) -> CanaryReference:
        """Makes the worker run the unsplit model; `progress` gets done and total layers."""
        request = stage_pb2.RecordCanaryRequest(
            model=assignment.model,
            weights_fingerprint=assignment.weights_fingerprint,
            token_ids=token_ids,
            num_logprobs=num_logprobs,
            max_model_len=assignment.max_model_len,
        )
        references: list[CanaryReference] = []

        def read(message: stage_pb2.RecordCanaryProgress) -> None:
            progress(message.done_layers, message.num_layers)
            if message.top_ids:
                top_ids, top_logprobs = tuple(message.top_ids), tuple(message.top_logprobs)
                references.append(CanaryReference(token_ids, top_ids, top_logprobs))

        await self._read_progress(self._stub.RecordCanary(request), read)
        if not references:
            raise WorkerDiedError(worker=self.worker.name, detail="the canary ended without values")
        return references[-1]

    async def open_epoch(self, plan: EpochPlan, position: RankPosition) -> None:
        """Starts an epoch on this rank: slots and KV cache empty, the next stage connected."""
        request = open_epoch_request(plan, position)
        try:
            await self._stub.OpenEpoch(request, timeout=self._call_seconds)
        except grpc.aio.AioRpcError as error:
            failure = call_error(error, self.worker.name, position.next_addresses)
        else:
            return
        await raise_after_grace(failure)

    def results(self, epoch: EpochId) -> ResultsCall:
        """Opens the stream of results of `epoch`; the caller cancels it."""
        return self._stub.Results(stage_pb2.ResultsRequest(epoch=epoch.to_proto()))

    def forward(self) -> ForwardCall:
        """Opens the stream of steps; the caller cancels it."""
        return self._stub.Forward()

    async def _read_progress(
        self,
        call: grpc.aio.UnaryStreamCall[RequestT, ProgressT],
        read: Callable[[ProgressT], None],
    ) -> None:
        """Reads `call` to its end; the worker must send a message every `progress_seconds`."""
        try:
            while True:
                async with asyncio.timeout(self._progress_seconds):
                    message = await call.read()
                if message is grpc.aio.EOF:
                    return
                read(cast("ProgressT", message))
        except TimeoutError:
            detail = f"no progress within {self._progress_seconds:g} s"
            raise WorkerDiedError(worker=self.worker.name, detail=detail) from None
        except grpc.aio.AioRpcError as error:
            raise call_error(error, self.worker.name) from None
        finally:
            call.cancel()
