"""Replays a trace: the real scheduler, modelled stages, and a clock that jumps to the next event.

The modelled coordinator works as the real one: sequentially, first all arrivals and results, then
steps while the scheduler makes any. Each step costs it `coordinator_seconds`. The stages' timings
of a step arrive with the step's result.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from runtime.errors import StagemeshError
from runtime.protocol.step import SampledToken, SlotSampling, Step
from scheduler import (
    Policy,
    PolicySnapshot,
    Scheduler,
    SchedulerLimits,
    SequenceRequest,
    StageRecord,
    TokenEvent,
)
from simulator.model.pipeline import Pipeline, PipelineSpec, StepTrace, work_of
from simulator.workload.outcomes import RequestOutcome, StepSpan, Targets
from simulator.workload.traces import Trace

CONTINUE, STOP = 0, 1
CHECK_SECONDS = 0.05
"""Interval of the check whether a replay with `max_misses` ends early."""
_GREEDY = SlotSampling()
_DEFAULT_TARGETS = Targets()


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """`max_tokens` is every request's limit: the scheduler does not know an answer's length.

    With `max_misses`, the replay ends when more requests than that have missed a target.
    """

    targets: Targets = _DEFAULT_TARGETS
    coordinator_seconds: float = 0.0005
    max_tokens: int = 1024
    max_misses: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcomes of a replay; `is_complete` is False if it ended early."""

    outcomes: tuple[RequestOutcome, ...]
    spans: tuple[StepSpan, ...]
    num_stages: int
    num_preemptions: int
    num_queried_tokens: int
    num_hit_tokens: int
    policy_snapshot: PolicySnapshot
    is_complete: bool


@dataclass(slots=True)
class _Live:
    """A request that is not finished."""

    index: int
    num_output_tokens: int
    num_generated: int = 0
    first_token_at: float = 0.0
    num_cached_tokens: int | None = None


class Replay:
    """One trace through one scheduler over one pipeline."""

    def __init__(
        self,
        trace: Trace,
        pipeline: PipelineSpec,
        limits: SchedulerLimits,
        policy: Policy,
        options: ReplayOptions,
        on_token: Callable[[int, float], None] | None = None,
    ) -> None:
        """`on_token` is called with each token's request index and simulated time in seconds."""
        self._on_token = on_token
        self._trace = trace
        self._limits = limits
        self._options = options
        self._scheduler = Scheduler(limits, policy)
        self._pipeline = Pipeline(pipeline, options.seed)
        self._num_stages = pipeline.num_stages
        self._clock = 0.0
        self._num_arrived = 0
        self._live: dict[int, _Live] = {}
        self._outcomes: dict[int, RequestOutcome] = {}
        self._num_misses = 0
        self._can_schedule = False
        self._checked_at = 0.0
        self._spans: list[StepSpan] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._continue_tokens = [
            SampledToken(slot, CONTINUE) for slot in range(limits.max_sequences)
        ]
        self._stop_tokens = [SampledToken(slot, STOP) for slot in range(limits.max_sequences)]

    def run(self) -> RunResult:
        """Replays the trace to its end, or until too many requests have missed a target."""
        is_complete = True
        while self._num_arrived < len(self._trace) or self._events:
            self._clock = max(self._clock, self._next_at())
            self._submit_arrivals()
            while self._events and self._events[0][0] <= self._clock:
                heapq.heappop(self._events)[2]()
            if self._can_schedule:
                self._can_schedule = False
                self._send_steps()
            if self._has_missed_too_many():
                is_complete = False
                break
        if is_complete:
            self._scheduler.check_integrity()
            assert not self._scheduler.has_work, "the trace is over and the scheduler has work"
        return RunResult(
            outcomes=tuple(self._outcomes[index] for index in sorted(self._outcomes)),
            spans=tuple(self._spans),
            num_stages=self._num_stages,
            num_preemptions=self._scheduler.num_preemptions,
            num_queried_tokens=self._scheduler.num_queried_tokens,
            num_hit_tokens=self._scheduler.num_hit_tokens,
            policy_snapshot=self._scheduler.policy_snapshot,
            is_complete=is_complete,
        )

    def _next_at(self) -> float:
        event_at = self._events[0][0] if self._events else float("inf")
        if self._num_arrived == len(self._trace):
            return event_at
        return min(event_at, self._trace[self._num_arrived].arrival)

    def _submit_arrivals(self) -> None:
        while self._num_arrived < len(self._trace):
            request = self._trace[self._num_arrived]
            if request.arrival > self._clock:
                return
            self._submit(self._num_arrived)
            self._num_arrived += 1
            self._can_schedule = True

    def _submit(self, index: int) -> None:
        request = self._trace[index]
        max_new_tokens = self._limits.max_new_tokens(request.num_prompt_tokens)
        sequence = SequenceRequest(
            sequence_id=index,
            prompt_ids=request.prompt_ids(index),
            sampling=_GREEDY,
            max_tokens=max(1, min(self._options.max_tokens, max_new_tokens)),
            stop_ids=frozenset({STOP}),
            arrival=request.arrival,
            ttft_target_seconds=self._options.targets.ttft_seconds,
        )
        try:
            self._scheduler.add(sequence)
        except StagemeshError:
            self._record_outcome(index, RequestOutcome(request, None, None, 0))
        else:
            self._live[index] = _Live(index, request.num_output_tokens)

    def _send_steps(self) -> None:
        while (step := self._scheduler.schedule(self._clock)) is not None:
            self._clock += self._options.coordinator_seconds
            work = work_of(step)
            step_trace = self._pipeline.send(step.number, work, self._clock)
            self._spans.append(StepSpan(step.number, work, self._clock, step_trace))
            for opening in step.opened_slots:
                live = self._live[self._scheduler.sequence_in_slot(opening.slot)]
                if live.num_cached_tokens is None:
                    live.num_cached_tokens = len(opening.cached_token_ids)
            self._schedule_result(step, step_trace)

    def _schedule_result(self, step: Step, step_trace: StepTrace) -> None:
        """Schedules the step's result, with the stages' timings, as an event."""
        records = [
            StageRecord(step.number, visit.stage, visit.timing) for visit in step_trace.visits
        ]
        draws = [
            (chunk.slot, self._scheduler.sequence_in_slot(chunk.slot))
            for chunk in step.chunks
            if chunk.sample
        ]
        self._at(step_trace.done_at, partial(self._finish_step, step.number, records, draws))

    def _at(self, time: float, action: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (time, self._num_events, action))

    def _finish_step(
        self, number: int, records: Sequence[StageRecord], draws: Sequence[tuple[int, int]]
    ) -> None:
        self._can_schedule = True
        for record in records:
            self._scheduler.observe(record)
        sampled = []
        for slot, sequence_id in draws:
            live = self._live.get(sequence_id)
            is_last = live is None or live.num_generated + 1 >= live.num_output_tokens
            sampled.append((self._stop_tokens if is_last else self._continue_tokens)[slot])
        for event in self._scheduler.update(number, sampled, self._clock):
            self._apply_token(event)

    def _apply_token(self, event: TokenEvent) -> None:
        live = self._live[event.sequence_id]
        live.num_generated += 1
        if self._on_token is not None:
            self._on_token(live.index, self._clock)
        if live.num_generated == 1:
            live.first_token_at = self._clock
        if event.finish_reason is not None:
            request = self._trace[live.index]
            outcome = RequestOutcome(
                request,
                live.first_token_at,
                self._clock,
                live.num_generated,
                live.num_cached_tokens or 0,
            )
            del self._live[event.sequence_id]
            self._record_outcome(live.index, outcome)

    def _record_outcome(self, index: int, outcome: RequestOutcome) -> None:
        self._outcomes[index] = outcome
        self._num_misses += not self._options.targets.met(outcome)

    def _has_missed_too_many(self) -> bool:
        max_misses = self._options.max_misses
        if max_misses is None or self._clock < self._checked_at + CHECK_SECONDS:
            return False
        self._checked_at = self._clock
        # A request without a first token at its TTFT target has missed it, too.
        latest = self._clock - self._options.targets.ttft_seconds
        num_late = 0
        for live in self._live.values():
            if self._trace[live.index].arrival >= latest or num_late > max_misses:
                break
            num_late += live.num_generated == 0
        return self._num_misses + num_late > max_misses
