"""A Stage service without a model: a real gRPC server whose answers follow `toy_model`.

It forwards headers along its lane, answers as its rank must, keeps slots and blocks as a real stage
would, and can hold, fail, report wrong results or refuse on request. `fake_worker.py` makes it a
member of
a mesh.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from protos import stage_pb2, stage_pb2_grpc
from runtime.errors import EpochEndedError, NextStageError, StagemeshError
from runtime.protocol.result_codec import result_to_proto
from runtime.protocol.step import SampledToken, ScoredToken, StageTiming, Step, StepResult
from runtime.protocol.step_codec import header_to_step
from runtime.rpc import channels
from tests.coordinator.fake_slots import Slots
from tests.coordinator.toy_model import toy_logprobs, toy_top


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True)
class Behaviour:
    """What a fake stage does besides its duty; tests change it while it runs."""

    load_error: StagemeshError | None = None
    skew_logprobs: float = 0.0
    num_kv_blocks: int = 64
    # Applied to the next result that carries tokens, once.
    corrupt: Callable[[stage_pb2.StepResult], None] | None = None
    # The step before which to end the epoch with a failure, once.
    fail_at_step: int | None = None
    # It ends the epoch, or stands still, at any token so far into a sequence: no canary is so long.
    fails_from: int | None = None
    stalls_from: int | None = None
    # The prompt that ends the epoch whenever it comes.
    poison: tuple[int, ...] = ()
    withhold_credits: bool = False
    # Addresses of workers that it does not reach.
    unreachable: set[str] = field(default_factory=set)
    # It loads, and reports its status, only while these are set.
    loading: asyncio.Event = field(default_factory=_set_event)
    answering: asyncio.Event = field(default_factory=_set_event)
    # Steps are taken only while this is set.
    running: asyncio.Event = field(default_factory=_set_event)


class FakeStage(stage_pb2_grpc.StageServicer):
    """One worker's Stage service."""

    def __init__(self, worker_id: str, behaviour: Behaviour) -> None:
        self.worker_id = worker_id
        self.behaviour = behaviour
        self.slots = Slots()
        self.num_loads = 0
        self.num_canaries = 0
        # Set once its status was asked for.
        self.asked = asyncio.Event()
        self.assignment = stage_pb2.Assignment()
        self.epoch = stage_pb2.EpochId()
        self.opening = stage_pb2.OpenEpochRequest()
        self._results: asyncio.Queue[stage_pb2.StepResult] = asyncio.Queue(1024)

    async def Load(  # type: ignore[override]  # noqa: N802
        self, request: stage_pb2.LoadRequest, context: Any
    ) -> None:
        await self.behaviour.loading.wait()
        if self.behaviour.load_error is not None:
            raise self.behaviour.load_error
        self.num_loads += 1
        self.assignment = request.assignment
        await context.write(stage_pb2.LoadProgress(done_bytes=50, total_bytes=100))
        report = stage_pb2.LoadReport(
            num_kv_blocks=self.behaviour.num_kv_blocks,
            weights_bytes=100,
            weights_fingerprint=request.assignment.weights_fingerprint,
        )
        await context.write(stage_pb2.LoadProgress(done_bytes=100, total_bytes=100, report=report))

    async def RecordCanary(  # type: ignore[override]  # noqa: N802
        self, request: stage_pb2.RecordCanaryRequest, context: Any
    ) -> None:
        self.num_canaries += 1
        ids, logprobs = toy_top(request.token_ids, request.num_logprobs)
        await context.write(
            stage_pb2.RecordCanaryProgress(
                done_layers=4, num_layers=4, top_ids=ids, top_logprobs=logprobs
            )
        )

    async def OpenEpoch(  # noqa: N802
        self, request: stage_pb2.OpenEpochRequest, context: Any
    ) -> stage_pb2.OpenEpochResponse:
        for peer in request.next:
            if peer.address in self.behaviour.unreachable:
                detail = f"next stage {peer.address}: failure requested by the test"
                raise NextStageError(cause="next_stage", detail=detail, address=peer.address)
        self.slots = Slots()
        self.epoch, self.opening = request.epoch, request
        self._results = asyncio.Queue(1024)
        return stage_pb2.OpenEpochResponse()

    async def Forward(  # type: ignore[override]  # noqa: N802
        self, _: Any, context: Any
    ) -> None:
        """Steps in strict order; whatever ends the stream ends the epoch."""
        results = self._results
        async with _next_stage(self.opening) as following:
            expected = 0
            while isinstance(frame := await context.read(), stage_pb2.Frame):
                assert frame.step == expected, f"step {frame.step} instead of {expected}"
                await self.behaviour.running.wait()
                if not self.behaviour.withhold_credits:
                    await context.write(stage_pb2.Credit(step=frame.step))
                step = header_to_step(frame.header)
                if _reaches(step, self.behaviour.stalls_from):
                    await context.read()
                self._fail_if_told(step, results)
                result = self._run(step)
                if self.opening.rank == 0:
                    results.put_nowait(result)
                if following is not None:
                    await following.write(frame)
                expected += 1

    async def Results(  # type: ignore[override]  # noqa: N802
        self, request: stage_pb2.ResultsRequest, context: Any
    ) -> None:
        assert request.epoch == self.epoch
        results = self._results
        while True:
            result = await results.get()
            await context.write(result)
            if result.HasField("failure"):
                return

    async def Status(  # noqa: N802
        self, request: stage_pb2.StatusRequest, context: Any
    ) -> stage_pb2.StatusResponse:
        self.asked.set()
        await self.behaviour.answering.wait()
        state = stage_pb2.WORKER_STATE_LOADED if self.num_loads else stage_pb2.WORKER_STATE_EMPTY
        return stage_pb2.StatusResponse(
            worker_id=self.worker_id,
            state=state,
            assignment=self.assignment,
            num_kv_blocks=self.behaviour.num_kv_blocks,
            weights_bytes=100,
        )

    async def Unload(  # noqa: N802
        self, request: stage_pb2.UnloadRequest, context: Any
    ) -> stage_pb2.UnloadResponse:
        return stage_pb2.UnloadResponse()

    def _fail_if_told(self, step: Step, results: asyncio.Queue[stage_pb2.StepResult]) -> None:
        behaviour = self.behaviour
        is_due = behaviour.fail_at_step is not None and step.number >= behaviour.fail_at_step
        poison = behaviour.poison
        is_poisoned = any(chunk.token_ids[: len(poison)] == poison for chunk in step.chunks)
        is_beyond = _reaches(step, behaviour.fails_from)
        if not is_due and not is_beyond and not (poison and is_poisoned):
            return
        behaviour.fail_at_step = None
        failure = stage_pb2.StageFailure(
            code="position", message="failure requested by the test", step=step.number
        )
        results.put_nowait(stage_pb2.StepResult(step=step.number, failure=failure))
        raise EpochEndedError(cause="position", detail="failure requested by the test")

    def _run(self, step: Step) -> stage_pb2.StepResult:
        sampling = self.slots.apply(step)
        is_last = self.opening.stage == self.assignment.num_stages - 1
        sampled = tuple(self._sample(slot) for slot in sampling) if is_last else ()
        scored = tuple(self._score(step)) if is_last else ()
        timing = StageTiming(0.1, 0.2, 0.3, 0.4)
        result = result_to_proto(StepResult(step.number, sampled, timing, scored))
        if sampled and self.behaviour.corrupt is not None:
            self.behaviour.corrupt(result)
            self.behaviour.corrupt = None
        return result

    def _score(self, step: Step) -> Iterator[ScoredToken]:
        """The scores of the prompt's next token for every row of the step's chunks."""
        for chunk in step.chunks:
            sampling = self.slots.sampling[chunk.slot]
            num_top = sampling.num_prompt_logprobs
            if num_top is None:
                continue
            following = () if chunk.next_token_id is None else (chunk.next_token_id,)
            known = [*self.slots.tokens[chunk.slot], *following]
            begin, end = chunk.position + 1, chunk.position + 1 + len(chunk.token_ids)
            for position in range(begin, min(end, sampling.num_prompt_tokens)):
                token_id = known[position]
                logprobs = toy_logprobs(known[:position])
                ids, top = toy_top(known[:position], num_top)
                yield ScoredToken(
                    chunk.slot, position, token_id, logprobs[token_id], tuple(ids), tuple(top)
                )

    def _sample(self, slot: int) -> SampledToken:
        num_logprobs = self.slots.sampling[slot].num_logprobs
        ids, logprobs = toy_top(self.slots.tokens[slot], max(1, num_logprobs))
        skewed = tuple(value + self.behaviour.skew_logprobs for value in logprobs[:num_logprobs])
        return SampledToken(slot, ids[0], logprobs[0], tuple(ids[:num_logprobs]), skewed)


def _reaches(step: Step, position: int | None) -> bool:
    ends = [chunk.position + len(chunk.token_ids) for chunk in step.chunks]
    return position is not None and max(ends, default=0) > position


@asynccontextmanager
async def _next_stage(opening: stage_pb2.OpenEpochRequest) -> AsyncIterator[Any]:
    """A stream to the same rank of the next stage, whose credits are read and forgotten."""
    if not opening.next:
        yield None
        return
    async with channels.dial(opening.next[opening.rank].address) as channel:
        call = stage_pb2_grpc.StageStub(channel).Forward()
        reader = asyncio.create_task(_drain(call))
        try:
            yield call
        finally:
            reader.cancel()
            call.cancel()


async def _drain(call: Any) -> None:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        pass
