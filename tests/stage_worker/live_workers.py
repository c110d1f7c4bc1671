"""Workers that serve on loopback in this process, without a mesh; the test is the coordinator."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protos import stage_pb2, stage_pb2_grpc
from runtime.protocol.step import SequenceChunk, SlotOpening, SlotSampling, Step
from runtime.protocol.step_codec import step_to_header
from runtime.rpc import channels
from runtime.rpc.tls import DialPolicy
from stage_worker.device.device_thread import DeviceThread
from stage_worker.loading.loading import WorkerDevice
from stage_worker.service import StageService
from stage_worker.worker import Worker

WAIT_SECONDS = 20.0
ON_LOOPBACK = DialPolicy()
PROMPT = (5, 17, 250, 3, 9)
ForwardCall = grpc.aio.StreamStreamCall[stage_pb2.Frame, stage_pb2.Credit]
ResultsCall = grpc.aio.UnaryStreamCall[stage_pb2.ResultsRequest, stage_pb2.StepResult]


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """The address of a worker and a client of it."""

    address: str
    stub: stage_pb2_grpc.StageStub

    async def load(self, assignment: stage_pb2.Assignment) -> list[stage_pb2.LoadProgress]:
        call = self.stub.Load(stage_pb2.LoadRequest(assignment=assignment), timeout=WAIT_SECONDS)
        return [message async for message in call]

    async def state(self) -> stage_pb2.StatusResponse:
        return await self.stub.Status(stage_pb2.StatusRequest(), timeout=WAIT_SECONDS)

    async def open_epoch(self, request: stage_pb2.OpenEpochRequest) -> None:
        await self.stub.OpenEpoch(request, timeout=WAIT_SECONDS)

    def results(self, epoch: stage_pb2.EpochId) -> ResultsCall:
        return self.stub.Results(stage_pb2.ResultsRequest(epoch=epoch), timeout=WAIT_SECONDS)

    def forward(self) -> ForwardCall:
        return self.stub.Forward(timeout=WAIT_SECONDS)


# The workers of each stage, by rank.
Stages = Sequence[Sequence[LiveWorker]]


async def next_result(results: ResultsCall) -> stage_pb2.StepResult:
    """The next message of a Results stream that has not ended."""
    message = await results.read()
    assert isinstance(message, stage_pb2.StepResult)
    return message


@asynccontextmanager
async def live_workers(
    count: int, dial_policy: DialPolicy = ON_LOOPBACK
) -> AsyncIterator[list[LiveWorker]]:
    """`count` workers, each of which is closed at the end."""
    async with asyncio.TaskGroup() as tasks, live_worker_in(tasks, dial_policy) as first:
        if count == 1:
            yield [first]
        else:
            async with live_workers(count - 1, dial_policy) as others:
                yield [first, *others]


@asynccontextmanager
async def live_worker_in(
    tasks: asyncio.TaskGroup, dial_policy: DialPolicy = ON_LOOPBACK
) -> AsyncIterator[LiveWorker]:
    """One worker whose sessions run in `tasks`."""
    with closing(DeviceThread(1)) as thread:
        worker = Worker("worker", WorkerDevice("cpu", num_threads=1), thread, tasks, dial_policy)
        server = channels.make_server()
        StageService(worker).add_to(server)
        address = await channels.bind(server, "127.0.0.1:0")
        await server.start()
        try:
            async with channels.dial(address) as channel:
                yield LiveWorker(address, stage_pb2_grpc.StageStub(channel))
        finally:
            await worker.close()
            await server.stop(grace=1.0)


def make_assignments(
    folder: Path, layer_counts: Sequence[int], fingerprint: str = ""
) -> list[stage_pb2.Assignment]:
    """One float32 assignment per stage."""
    firsts = (0, *accumulate(layer_counts))
    return [
        stage_pb2.Assignment(
            stage=stage,
            num_stages=len(layer_counts),
            tp_size=1,
            first_layer=firsts[stage],
            num_layers=num_layers,
            model=str(folder),
            weights_fingerprint=fingerprint,
            dtype=stage_pb2.DTYPE_FLOAT32,
            block_size=8,
            max_model_len=512,
            kv_memory_bytes=1 << 20,
        )
        for stage, num_layers in enumerate(layer_counts)
    ]


def make_opening(
    counter: int,
    *,
    stage: int = 0,
    next_addresses: Sequence[str] = (),
    num_senders: int = 1,
    window: int = 2,
) -> stage_pb2.OpenEpochRequest:
    """An epoch of the coordinator named `coordinator`, for rank 0 of `stage`."""
    return stage_pb2.OpenEpochRequest(
        epoch=stage_pb2.EpochId(coordinator_id="coordinator", counter=counter),
        stage=stage,
        num_kv_blocks=8,
        max_sequences=4,
        max_step_tokens=32,
        window=window,
        next=[stage_pb2.Peer(address=a, rank=rank) for rank, a in enumerate(next_addresses)],
        num_senders=num_senders,
        backend=stage_pb2.COLLECTIVE_BACKEND_AUTO,
        collective_timeout_seconds=WAIT_SECONDS,
    )


async def open_pipeline(workers: Sequence[LiveWorker], counter: int) -> stage_pb2.EpochId:
    """Opens one epoch on stages of one rank each."""
    return await open_epoch_on_ranks([[worker] for worker in workers], counter)


@dataclass(frozen=True, slots=True)
class RanksPlan:
    """The number of layers and of ranks of each stage."""

    layer_counts: tuple[int, ...]
    tp_sizes: tuple[int, ...]

    @property
    def num_workers(self) -> int:
        return sum(self.tp_sizes)

    def arrange(self, workers: Sequence[LiveWorker]) -> Stages:
        """The workers by stage and rank."""
        firsts = (0, *accumulate(self.tp_sizes))
        return [
            workers[first : first + size]
            for first, size in zip(firsts, self.tp_sizes, strict=False)
        ]


async def load_ranks(stages: Stages, folder: Path, layer_counts: Sequence[int]) -> None:
    """Loads every rank's share."""
    for assignment, ranks in zip(make_assignments(folder, layer_counts), stages, strict=True):
        for rank, worker in enumerate(ranks):
            assignment.rank, assignment.tp_size = rank, len(ranks)
            await worker.load(assignment)


async def open_epoch_on_ranks(
    stages: Stages,
    counter: int = 1,
    collective_timeout_seconds: float = WAIT_SECONDS,
    overlap: stage_pb2.Overlap = stage_pb2.OVERLAP_AUTO,
) -> stage_pb2.EpochId:
    """Opens one epoch on all ranks, the last stage first, like the coordinator."""
    for stage in reversed(range(len(stages))):
        following = stages[stage + 1] if stage + 1 < len(stages) else ()
        request = make_opening(
            counter,
            stage=stage,
            num_senders=len(stages[stage - 1]) if stage else 1,
            next_addresses=[each.address for each in following],
        )
        request.collective_timeout_seconds = collective_timeout_seconds
        request.overlap = overlap
        if overlap == stage_pb2.OVERLAP_OFF:
            request.window = 1
        await open_stage(stages[stage], request)
    return request.epoch


async def open_stage(ranks: Sequence[LiveWorker], request: stage_pb2.OpenEpochRequest) -> None:
    """Opens an epoch on all ranks of one stage concurrently."""
    async with asyncio.TaskGroup() as tasks:
        for rank, worker in enumerate(ranks):
            opening = stage_pb2.OpenEpochRequest()
            opening.CopyFrom(request)
            opening.rank = rank
            tasks.create_task(worker.open_epoch(opening))


def coordinator_frame(epoch: stage_pb2.EpochId, step: Step) -> stage_pb2.Frame:
    """The frame that the coordinator sends to stage 0, which has only the header."""
    return stage_pb2.Frame(epoch=epoch, step=step.number, header=step_to_header(step), last=True)


async def load_pipeline(workers: Sequence[LiveWorker], folder: Path) -> None:
    """Loads a model of four layers, on one worker or as three and one on two."""
    layer_counts = {1: (4,), 2: (3, 1)}[len(workers)]
    for worker, assignment in zip(workers, make_assignments(folder, layer_counts), strict=True):
        await worker.load(assignment)


def prefill(number: int = 0, slot: int = 0, block: int = 0) -> Step:
    """The whole of PROMPT in a new slot, sampled greedily."""
    return Step(
        number,
        opened_slots=(SlotOpening(slot, SlotSampling(num_logprobs=3)),),
        chunks=(SequenceChunk(slot, 0, PROMPT, new_block_ids=(block,), sample=True),),
    )


async def read_failure(worker: LiveWorker, epoch: stage_pb2.EpochId) -> stage_pb2.StageFailure:
    """The failure that Results reports for an epoch."""
    messages = [message async for message in worker.results(epoch)]
    assert messages[-1].HasField("failure")
    return messages[-1].failure


async def stream_error(call: ForwardCall) -> tuple[grpc.StatusCode, str]:
    """The gRPC status and the error code of an aborted stream."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _read_all(call)
    code, _ = channels.error_from_rpc(caught.value)
    return caught.value.code(), code


async def _read_all(call: ForwardCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass
