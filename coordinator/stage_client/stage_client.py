"""Owns the calls to one worker's Stage service: typed in and out, each wait on it with a deadline.

It decides nothing; an error says whether the worker refused (asking it again is pointless), failed
or could not be reached.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar, cast

import grpc
import grpc.aio

from coordinator.membership.assignment import Assignment, LoadReport
from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.replica.canary import CanaryReference
from coordinator.stage_client.assignment_codec import BACKENDS, OVERLAPS, assignment_to_proto
from coordinator.stage_client.root_cause import raise_after_grace
from coordinator.stage_client.stage_errors import opening_error, stage_error
from protos import stage_pb2, stage_pb2_grpc
from runtime.errors import WorkerDiedError
from runtime.rpc.channels import dial
from runtime.rpc.tls import Role

ProgressFn = Callable[[int, int], None]
ForwardCall = grpc.aio.StreamStreamCall[stage_pb2.Frame, stage_pb2.Credit]
ResultsCall = grpc.aio.UnaryStreamCall[stage_pb2.ResultsRequest, stage_pb2.StepResult]

RequestT = TypeVar("RequestT")
ProgressT = TypeVar("ProgressT")

# A worker answers `Status` at any time, also while it loads.
STATUS_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class EpochId:
    """The life of one replica between two changes."""

    coordinator_id: str
    counter: int

    def to_proto(self) -> stage_pb2.EpochId:
        """The same on the wire."""
        return stage_pb2.EpochId(coordinator_id=self.coordinator_id, counter=self.counter)


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """What all ranks of a replica agree on for one epoch."""

    epoch: EpochId
    replica: int
    num_kv_blocks: int
    max_sequences: int
    max_step_tokens: int
    window: int
    backend: str
    collective_timeout_seconds: float
    overlap: str


@dataclass(frozen=True, slots=True)
class RankPosition:
    """Where one rank stands in an epoch; `next_addresses` are the next stage's ranks in order."""

    stage: int
    rank: int
    next_addresses: tuple[str, ...]
    num_senders: int


class StageClient:
    """The way to one worker, over a channel of its own."""

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
        """A link whose channel, and with it every call left open, is closed at the end."""
        tls = None if options.mesh_tls is None else options.mesh_tls.credentials_for(Role.WORKER)
        async with dial(worker.identity.address, tls) as channel:
            yield cls(worker, channel, options.call_seconds, options.load_progress_seconds)

    async def load(self, assignment: Assignment, progress: ProgressFn) -> LoadReport:
        """Makes the worker load its part; `progress` gets bytes done and in all."""
        request = stage_pb2.LoadRequest(assignment=assignment_to_proto(assignment))
        reports: list[stage_pb2.LoadReport] = []

        def take(message: stage_pb2.LoadProgress) -> None:
            progress(message.done_bytes, message.total_bytes)
            if message.HasField("report"):
                reports.append(message.report)

        await self._follow(self._stub.Load(request), take)
        if not reports:
            raise WorkerDiedError(worker=self.worker.name, detail="loading ended without a report")
        report = reports[-1]
        return LoadReport(
            num_kv_blocks=report.num_kv_blocks,
            weights_bytes=report.weights_bytes,
            peak_rss_bytes=report.peak_rss_bytes,
            load_seconds=report.load_seconds,
            weights_fingerprint=report.weights_fingerprint,
        )

    async def held_report(self, assignment: Assignment) -> LoadReport | None:
        """The report of a worker that holds just this part already, None if it does not.

        The first call of every try: a worker that can be reached by nobody is found out here.
        """
        timeout = min(STATUS_SECONDS, self._call_seconds)
        try:
            status = await self._stub.Status(stage_pb2.StatusRequest(), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise stage_error(error, self.worker.name) from None
        is_loaded = status.state in (
            stage_pb2.WORKER_STATE_LOADED,
            stage_pb2.WORKER_STATE_SERVING,
        )
        if not is_loaded or status.assignment != assignment_to_proto(assignment):
            return None
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
        """What the model in one piece says; `progress` gets layers done and in all."""
        request = stage_pb2.RecordCanaryRequest(
            model=assignment.model,
            weights_fingerprint=assignment.weights_fingerprint,
            token_ids=token_ids,
            num_logprobs=num_logprobs,
            max_model_len=assignment.max_model_len,
        )
        references: list[CanaryReference] = []

        def take(message: stage_pb2.RecordCanaryProgress) -> None:
            progress(message.done_layers, message.num_layers)
            if message.top_ids:
                top_ids, top_logprobs = tuple(message.top_ids), tuple(message.top_logprobs)
                references.append(CanaryReference(token_ids, top_ids, top_logprobs))

        await self._follow(self._stub.RecordCanary(request), take)
        if not references:
            raise WorkerDiedError(worker=self.worker.name, detail="the canary ended without values")
        return references[-1]

    async def open_epoch(self, plan: EpochPlan, place: RankPosition) -> None:
        """Starts an epoch on this rank: slots and KV cache empty, the next stage dialled."""
        request = stage_pb2.OpenEpochRequest(
            epoch=plan.epoch.to_proto(),
            replica=plan.replica,
            stage=place.stage,
            rank=place.rank,
            num_kv_blocks=plan.num_kv_blocks,
            max_sequences=plan.max_sequences,
            max_step_tokens=plan.max_step_tokens,
            window=plan.window,
            next=[
                stage_pb2.Peer(address=address, rank=rank)
                for rank, address in enumerate(place.next_addresses)
            ],
            num_senders=place.num_senders,
            backend=BACKENDS[plan.backend],
            collective_timeout_seconds=plan.collective_timeout_seconds,
            overlap=OVERLAPS[plan.overlap],
        )
        try:
            await self._stub.OpenEpoch(request, timeout=self._call_seconds)
        except grpc.aio.AioRpcError as error:
            failure = opening_error(error, self.worker.name, place.next_addresses)
        else:
            return
        await raise_after_grace(failure)

    def results(self, epoch: EpochId) -> ResultsCall:
        """Opens the stream of results of `epoch`; the caller cancels it."""
        return self._stub.Results(stage_pb2.ResultsRequest(epoch=epoch.to_proto()))

    def forward(self) -> ForwardCall:
        """Opens the stream of steps; the caller cancels it."""
        return self._stub.Forward()

    async def _follow(
        self,
        call: grpc.aio.UnaryStreamCall[RequestT, ProgressT],
        each: Callable[[ProgressT], None],
    ) -> None:
        """Reads `call` to its end; the worker must say something every `progress_seconds`."""
        try:
            while True:
                async with asyncio.timeout(self._progress_seconds):
                    message = await call.read()
                if message is grpc.aio.EOF:
                    return
                each(cast("ProgressT", message))
        except TimeoutError:
            detail = f"no progress within {self._progress_seconds:g} s"
            raise WorkerDiedError(worker=self.worker.name, detail=detail) from None
        except grpc.aio.AioRpcError as error:
            raise stage_error(error, self.worker.name) from None
        finally:
            call.cancel()
