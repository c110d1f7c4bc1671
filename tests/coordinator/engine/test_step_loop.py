"""The parts of one iteration of the step loop, over streams that a table stands for."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from coordinator.engine.step_loop import StepLoop
from runtime.errors import EpochEndedError, StagemeshError
from runtime.protocol.inference_types import FinishReason
from runtime.protocol.step import SampledToken, SlotSampling, StageTiming, Step, StepResult
from scheduler import (
    FixedPolicy,
    Scheduler,
    SchedulerLimits,
    SequenceRequest,
    StageRecord,
    Watchdog,
)

if TYPE_CHECKING:
    from coordinator.stage_client.epoch_streams import EpochStreams

LIMITS = SchedulerLimits(
    num_blocks=16,
    block_size=4,
    max_sequences=2,
    max_step_tokens=8,
    max_model_len=32,
    num_steps_in_flight=2,
    max_waiting=8,
)
TOKEN = 7


@dataclass
class ScriptedStreams:
    """Streams with `credits`; with `answers`, each step's result arrives as the step is sent."""

    wake: asyncio.Event
    credits: int = 8
    answers: bool = True
    sent: list[Step] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)
    records: list[StageRecord] = field(default_factory=list)

    @property
    def can_send(self) -> bool:
        return self.credits > 0

    async def send(self, step: Step) -> None:
        self.sent.append(step)
        self.credits -= 1
        if self.answers:
            self.answer(step)

    def answer(self, step: Step) -> None:
        """Has a result with a token for every row that is to be sampled, and a credit."""
        sampled = tuple(SampledToken(each.slot, TOKEN) for each in step.chunks if each.sample)
        self.results.append(StepResult(step.number, sampled))
        self.records.append(StageRecord(step.number, 0, StageTiming(compute_seconds=1.0)))
        self.credits += 1
        self.wake.set()

    def take_results(self) -> list[StepResult]:
        taken, self.results = self.results, []
        return taken

    def take_records(self) -> list[StageRecord]:
        taken, self.records = self.records, []
        return taken

    def stalled(self, cause: str, detail: str) -> StagemeshError:
        return EpochEndedError(cause=cause, detail=detail)


def make_loop(
    credits: int = 8, *, answers: bool = True, first_step: int = 0, clock: float = 0.0
) -> tuple[StepLoop, Scheduler, ScriptedStreams]:
    """A loop whose clock stands at `clock`; it waits for a result or for work for no time."""
    wake = asyncio.Event()
    streams = ScriptedStreams(wake, credits, answers)
    scheduler = Scheduler(LIMITS, FixedPolicy(LIMITS.max_step_tokens), first_step)
    watchdog = Watchdog(step_seconds=0.0, stall_seconds=0.0)
    loop = StepLoop(scheduler, cast("EpochStreams", streams), wake, watchdog, lambda: clock)
    return loop, scheduler, streams


def request(sequence_id: int, num_prompt_tokens: int = 3, max_tokens: int = 2) -> SequenceRequest:
    prompt = tuple(range(10, 10 + num_prompt_tokens))
    return SequenceRequest(sequence_id, prompt, SlotSampling(), max_tokens, frozenset(), 0.0)


async def test_run_until_idle_returns_all_tokens_and_leaves_no_step() -> None:
    loop, scheduler, streams = make_loop(first_step=5)
    scheduler.add(request(1))
    scheduler.add(request(2, max_tokens=1))
    tokens = await loop.run_until_idle()
    assert [(each.sequence_id, each.token.token_id) for each in tokens] == [
        (1, TOKEN),
        (2, TOKEN),
        (1, TOKEN),
    ]
    assert [each.finish_reason for each in tokens] == [
        None,
        FinishReason.LENGTH,
        FinishReason.LENGTH,
    ]
    assert [step.number for step in streams.sent] == list(range(5, 5 + len(streams.sent)))
    assert not scheduler.has_work


@pytest.mark.parametrize(
    ("credits", "num_requests", "is_scheduled"), [(0, 1, False), (1, 0, False), (1, 1, True)]
)
async def test_schedule_needs_a_credit_and_work(
    credits: int, num_requests: int, is_scheduled: bool
) -> None:
    loop, scheduler, _ = make_loop(credits)
    for number in range(num_requests):
        scheduler.add(request(number))
    assert (loop.schedule(0.0) is not None) is is_scheduled


async def test_take_results_applies_each_result_when_it_is_iterated() -> None:
    loop, scheduler, streams = make_loop(clock=3.0)
    scheduler.add(request(1, max_tokens=4))
    scheduler.add(request(2, num_prompt_tokens=8, max_tokens=4))
    steps = []
    while (step := loop.schedule(3.0)) is not None:
        await loop.send(step)
        steps.append(step)
    assert len(steps) == LIMITS.num_steps_in_flight
    taken = loop.take_results()
    first = next(taken)
    assert first.now == 3.0
    assert scheduler.num_steps_in_flight == 1
    assert [each.sequence_id for events in (first, *taken) for each in events.tokens] == [1, 2]
    assert scheduler.num_steps_in_flight == 0
    assert not streams.wake.is_set()


@pytest.mark.parametrize(
    ("credits", "answers", "cause", "detail"),
    [
        (8, False, "step_timeout", "no result within 0 s"),
        (0, True, "step_timeout", "no credit within 0 s"),
    ],
)
async def test_wait_without_progress_ends_the_epoch_with_the_cause(
    credits: int, answers: bool, cause: str, detail: str
) -> None:
    loop, scheduler, _ = make_loop(credits, answers=answers)
    scheduler.add(request(1))
    with pytest.raises(EpochEndedError) as caught:
        await loop.run_until_idle()
    assert (caught.value.cause, caught.value.detail) == (cause, detail)


async def test_wait_with_a_result_that_has_arrived_returns_at_once() -> None:
    loop, scheduler, streams = make_loop(answers=False)
    scheduler.add(request(1, max_tokens=1))
    step = loop.schedule(0.0)
    assert step is not None
    await loop.send(step)
    streams.answer(step)
    await loop.wait()
    [events] = loop.take_results()
    assert [each.sequence_id for each in events.tokens] == [1]
