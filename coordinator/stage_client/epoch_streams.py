"""Owns one epoch's streams: steps to every rank of stage 0, results from every rank.

Rank 0 of a stage answers each step; the others say nothing but why they failed.

What a peer says is checked here before anybody believes it; any breach ends the epoch. It never
decides what to send.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain, pairwise
from typing import Any

import grpc
import grpc.aio

from coordinator.stage_client.failure_source import RankFailureSource
from coordinator.stage_client.result_validation import check_part, check_tokens
from coordinator.stage_client.root_cause import raise_after_grace
from coordinator.stage_client.stage_client import EpochPlan, ForwardCall, ResultsCall, StageClient
from protos import stage_pb2
from runtime.errors import (
    EpochEndedError,
    FrameError,
    StagemeshError,
    StepGapError,
    WindowExceededError,
)
from runtime.protocol.result_codec import result_from_proto
from runtime.protocol.step import Step, StepResult
from runtime.protocol.step_codec import step_to_header
from scheduler import StageRecord

RecordFn = Callable[[StageRecord], None]


class EpochStreams:
    """The open streams of one epoch; what arrives is collected until the step loop takes it.

    Its buffers are bounded by the steps in flight: a stage may answer only what was sent.
    """

    def __init__(
        self,
        plan: EpochPlan,
        forward: Sequence[ForwardCall],
        send_seconds: float,
        wake: asyncio.Event,
        addresses: tuple[tuple[str, ...], ...],
    ) -> None:
        """`addresses` are those of the workers, by stage and rank."""
        self._epoch = plan.epoch
        self._forward = forward
        self._window = plan.window
        self._max_step_tokens = plan.max_step_tokens
        self._send_seconds = send_seconds
        self._wake = wake
        self._credits = [plan.window] * len(forward)
        self._results: list[StepResult] = []
        self._records: list[StageRecord] = []
        self._sources = [RankFailureSource(stage, 0, addresses) for stage in range(len(addresses))]
        # Steps sent so far, and those that each stage has answered.
        self._num_sent = 0
        self._num_answered = [0] * len(addresses)

    @property
    def num_sent(self) -> int:
        """Steps sent so far, and so the number of the next one."""
        return self._num_sent

    @property
    def num_credits(self) -> int:
        """Steps that every rank of stage 0 would take now."""
        return min(self._credits)

    @property
    def can_send(self) -> bool:
        """Every rank of stage 0 has a credit left."""
        return self.num_credits > 0

    async def send(self, step: Step) -> None:
        """Writes `step` to every rank of stage 0; only with `can_send`."""
        frame = stage_pb2.Frame(
            epoch=self._epoch.to_proto(), step=step.number, header=step_to_header(step), last=True
        )
        self._num_sent += 1
        try:
            async with asyncio.timeout(self._send_seconds):
                for rank, call in enumerate(self._forward):
                    self._credits[rank] -= 1
                    await call.write(frame)
        except TimeoutError:
            detail = f"stage 0 did not take step {step.number} within {self._send_seconds:g} s"
            raise EpochEndedError(cause="send_timeout", detail=detail) from None
        except grpc.aio.AioRpcError as error:
            end = self._sources[0].from_status(error)
        except asyncio.InvalidStateError:
            end = self._sources[0].from_closed("stream")
        else:
            return
        await raise_after_grace(end)

    def stalled(self, cause: str, detail: str) -> StagemeshError:
        """The error of steps that do not come back, or are not taken.

        Of the last stage that owes an answer to what the one before it has done: it may hold back
        all those before it.
        """
        given = (self._num_sent, *self._num_answered)
        owing = [stage for stage, (had, done) in enumerate(pairwise(given)) if done < had]
        if owing:
            waits_for = f"it has not answered step {self._num_answered[owing[-1]]}"
            return self._sources[owing[-1]].from_stage(cause, f"{detail}; {waits_for}")
        if not self.can_send:
            return self._sources[0].from_stage(cause, detail)
        return EpochEndedError(cause=cause, detail=detail)

    def take_results(self) -> list[StepResult]:
        """The last stage's results since the last call, in order."""
        results, self._results = self._results, []
        return results

    def take_records(self) -> list[StageRecord]:
        """What stages have told of their steps since the last call, a stage's own in order."""
        records, self._records = self._records, []
        return records

    async def read_credits(self, rank: int) -> None:
        """Never returns: counts the credits of one rank of stage 0 until its stream ends."""
        call = self._forward[rank]
        source = self._sources[0]
        end = source.from_closed("stream")
        expected = 0
        try:
            async for credit in call:
                if self._credits[rank] >= self._window:
                    raise WindowExceededError(step=credit.step, window=self._window)
                if credit.step != expected:
                    raise FrameError(what="step of a credit", expected=expected, actual=credit.step)
                expected += 1
                self._credits[rank] += 1
                self._wake.set()
        except grpc.aio.AioRpcError as error:
            end = source.from_status(error)
        except StagemeshError as error:
            end = source.from_violation(error)
        await raise_after_grace(end)

    async def read_results(
        self, stage: int, call: ResultsCall, record: RecordFn, vocab_size: int | None
    ) -> None:
        """Never returns: reads a rank 0's results; the last stage's carry `vocab_size`."""
        source = self._sources[stage]
        end = source.from_closed("results")
        parts: list[stage_pb2.StepResult] = []
        try:
            async for message in call:
                if message.HasField("failure"):
                    end = source.from_result(message.failure)
                    break
                if message.continues:
                    check_part(message, parts, self._max_step_tokens)
                    parts.append(message)
                    continue
                self._take(stage, result_from_proto(message, parts), record, vocab_size)
                parts = []
        except grpc.aio.AioRpcError as error:
            end = source.from_status(error)
        except StagemeshError as error:
            end = source.from_violation(error)
        await raise_after_grace(end)

    def _take(
        self, stage: int, result: StepResult, record: RecordFn, vocab_size: int | None
    ) -> None:
        """A stage's answer to a step; raises what it breaks."""
        expected = self._num_answered[stage]
        if result.step != expected or expected >= self._num_sent:
            raise StepGapError(expected=expected, actual=result.step)
        if vocab_size is not None:
            check_tokens((*result.sampled, *result.scored), vocab_size)
        self._num_answered[stage] += 1
        from_result = StageRecord(result.step, stage, result.timing)
        record(from_result)
        self._records.append(from_result)
        if vocab_size is not None:
            self._results.append(result)
            self._wake.set()


async def read_failure(source: RankFailureSource, call: ResultsCall) -> None:
    """Never returns: waits for what another rank than 0 failed of."""
    end = source.from_closed("results")
    try:
        async for message in call:
            if message.HasField("failure"):
                end = source.from_result(message.failure)
                break
    except grpc.aio.AioRpcError as error:
        end = source.from_status(error)
    await raise_after_grace(end)


@asynccontextmanager
async def open_streams(
    plan: EpochPlan,
    stages: Sequence[Sequence[StageClient]],
    send_seconds: float,
    wake: asyncio.Event,
    record: RecordFn,
    vocab_size: int,
) -> AsyncIterator[EpochStreams]:
    """The streams of an epoch that every rank has opened, read in the background.

    The first error of a reader cancels the body and comes out in an exception group; all calls
    are cancelled at the end, which tells the stages that the epoch is over.
    """
    addresses = tuple(tuple(client.worker.name for client in ranks) for ranks in stages)
    forward = [client.forward() for client in stages[0]]
    results = [[client.results(plan.epoch) for client in ranks] for ranks in stages]
    streams = EpochStreams(plan, forward, send_seconds, wake, addresses)
    try:
        async with asyncio.TaskGroup() as tasks:
            readers = [
                *(streams.read_credits(rank) for rank in range(len(forward))),
                *_result_readers(streams, results, addresses, record, vocab_size),
            ]
            running = [tasks.create_task(reader) for reader in readers]
            yield streams
            for task in running:
                task.cancel()
    finally:
        for call in (*forward, *chain.from_iterable(results)):
            call.cancel()


def _result_readers(
    streams: EpochStreams,
    results: Sequence[Sequence[ResultsCall]],
    addresses: tuple[tuple[str, ...], ...],
    record: RecordFn,
    vocab_size: int,
) -> Iterator[Coroutine[Any, Any, None]]:
    """One for each rank of each stage."""
    for stage, (first, *others) in enumerate(results):
        is_last = stage == len(results) - 1
        yield streams.read_results(stage, first, record, vocab_size if is_last else None)
        for rank, call in enumerate(others, start=1):
            yield read_failure(RankFailureSource(stage, rank, addresses), call)
