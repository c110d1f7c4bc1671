"""Holds the streams of one epoch: steps to every rank of stage 0, results from every rank.

Rank 0 of a stage answers each step; the other ranks send only their failures. Everything that a
peer sends is validated before use, and a breach ends the epoch. What to send is decided elsewhere.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain, pairwise
from typing import Any

import grpc
import grpc.aio

from coordinator.stage_client.failures import RankFailureSource, raise_after_grace
from coordinator.stage_client.result_reader import check_tokens, read_failure, read_results
from coordinator.stage_client.stage_client import ForwardCall, StageClient
from coordinator.stage_client.stage_codec import EpochPlan
from protos import stage_pb2
from runtime.errors import (
    EpochEndedError,
    FrameError,
    StagemeshError,
    StepGapError,
    WindowExceededError,
)
from runtime.protocol.step import Step, StepResult
from runtime.protocol.step_codec import step_to_header
from scheduler import StageRecord

RecordFn = Callable[[StageRecord], None]


class EpochStreams:
    """The open streams of one epoch; results are collected until the step loop takes them.

    The buffers are bounded by the steps in flight: a stage may answer only what was sent.
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
        """Steps sent so far, which is the number of the next one."""
        return self._num_sent

    @property
    def num_credits(self) -> int:
        """Steps that every rank of stage 0 accepts now."""
        return min(self._credits)

    @property
    def can_send(self) -> bool:
        """Whether every rank of stage 0 has a credit left."""
        return self.num_credits > 0

    async def send(self, step: Step) -> None:
        """Writes the next step to every rank of stage 0; requires `can_send`."""
        assert step.number == self._num_sent, f"step {step.number} follows {self._num_sent - 1}"
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
            end = self._sources[0].from_close("stream")
        else:
            return
        await raise_after_grace(end)

    def stalled(self, cause: str, detail: str) -> StagemeshError:
        """The error for steps that are not answered or not accepted.

        Names the last stage that has not answered a step that the stage before it has done: it may
        hold back all stages before it.
        """
        num_received = (self._num_sent, *self._num_answered)
        behind = [
            stage
            for stage, (received, answered) in enumerate(pairwise(num_received))
            if answered < received
        ]
        if behind:
            waits_for = f"it has not answered step {self._num_answered[behind[-1]]}"
            return self._sources[behind[-1]].stage_failure(cause, f"{detail}; {waits_for}")
        if not self.can_send:
            return self._sources[0].stage_failure(cause, detail)
        return EpochEndedError(cause=cause, detail=detail)

    def take_results(self) -> list[StepResult]:
        """The last stage's results since the last call, in order."""
        results, self._results = self._results, []
        return results

    def take_records(self) -> list[StageRecord]:
        """The stages' step records since the last call, in order within a stage."""
        records, self._records = self._records, []
        return records

    async def read_credits(self, rank: int) -> None:
        """Never returns: counts the credits of one rank of stage 0 until its stream ends."""
        call = self._forward[rank]
        source = self._sources[0]
        end = source.from_close("stream")
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

    def accept(
        self, stage: int, record: RecordFn, vocab_size: int | None, result: StepResult
    ) -> None:
        """Accepts a stage's answer to a step; `vocab_size` is given for the last stage only.

        Raises `StepGapError` or `FrameError` for an answer that breaks the protocol.
        """
        expected = self._num_answered[stage]
        if result.step != expected or expected >= self._num_sent:
            raise StepGapError(expected=expected, actual=result.step)
        if vocab_size is not None:
            check_tokens(result, vocab_size)
        self._num_answered[stage] += 1
        stage_record = StageRecord(result.step, stage, result.timing)
        record(stage_record)
        self._records.append(stage_record)
        if vocab_size is not None:
            self._results.append(result)
            self._wake.set()


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

    The first error of a reader cancels the body and is raised in an exception group. All calls are
    cancelled at the end, which ends the epoch on the stages.
    """
    addresses = tuple(tuple(client.worker.name for client in ranks) for ranks in stages)
    forward = [client.forward() for client in stages[0]]
    results = [[client.results(plan.epoch) for client in ranks] for ranks in stages]
    streams = EpochStreams(plan, forward, send_seconds, wake, addresses)

    def result_readers() -> Iterator[Coroutine[Any, Any, None]]:
        for stage, (first, *others) in enumerate(results):
            size = vocab_size if stage == len(results) - 1 else None
            source = RankFailureSource(stage, 0, addresses)
            accept = partial(streams.accept, stage, record, size)
            yield read_results(source, first, plan.max_step_tokens, accept)
            for rank, call in enumerate(others, start=1):
                yield read_failure(RankFailureSource(stage, rank, addresses), call)

    try:
        async with asyncio.TaskGroup() as tasks:
            credit_readers = (streams.read_credits(rank) for rank in range(len(forward)))
            running = [tasks.create_task(each) for each in (*credit_readers, *result_readers())]
            yield streams
            for task in running:
                task.cancel()
    finally:
        for call in (*forward, *chain.from_iterable(results)):
            call.cancel()
