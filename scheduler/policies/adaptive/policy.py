"""The policy `adaptive`: sizes microbatches by predicted seconds, learnt from stages' timings.

Once per cycle it chooses the number of microbatches in flight and their target time; for each
microbatch, the decodes and the lengths of prompt chunks, so that all take equal time. Times are
arguments; it reads no clock.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scheduler.cost_model.feedback import SentStep, StageRecord, StepWork
from scheduler.cost_model.pipeline_model import PipelineModel
from scheduler.cost_model.roofline_priors import guess_costs
from scheduler.limits import SchedulerLimits
from scheduler.observability.snapshot import DecisionCounts, PolicySnapshot
from scheduler.policies.adaptive.cycle_costs import CycleBasis
from scheduler.policies.adaptive.planner import (
    MIN_CHUNK_TOKENS,
    CyclePlan,
    CyclePlanner,
    best_plan,
    partition_decodes,
)
from scheduler.policies.adaptive.targets import (
    CycleLimits,
    cycle_load,
    cycle_seconds,
    prompt_backlog,
    prompt_cost_weight,
)
from scheduler.policies.interface import MicrobatchView, SchedulerView, SequenceView
from scheduler.policies.throttle import ThrottleOptions, ThrottlePolicy

TRUSTED_ERROR = 0.15
FALLBACK_ERROR = 0.5
WARMUP_RECORDS = 8
WARMUP_GROWTH = 1.25
"""Growth of a microbatch's rows per cycle until the error is below 15%."""

PROMPT_SHARE = 8
"""One in this many rows is reserved for prompts while any wait, so decodes never starve them."""

READING_ROWS = 2
"""Limit of the first microbatch, in times that a stage takes to read its weights."""

UNKNOWN_DEVICE = guess_costs("cpu", weights_bytes=0, bytes_per_weight=4, num_layers=0)
"""An unknown device counts as a CPU, where too long chunks cost most."""


@dataclass(frozen=True, slots=True)
class AdaptiveOptions:
    """The target in seconds per output token or None; `slack` is the reserved share of it.

    A target that a single decode in an empty pipeline misses counts as none. `warmup_tokens` is the
    minimum limit of the first microbatch's rows.
    """

    tpot_seconds: float | None = None
    slack: float = 0.03
    warmup_tokens: int = 128


class AdaptivePolicy:
    """Uses a model of the pipeline; falls back to `throttle` while the model is inaccurate."""

    def __init__(self, options: AdaptiveOptions, throttle: ThrottleOptions) -> None:
        self._options = options
        self._fallback = ThrottlePolicy(throttle)

    def start_epoch(self, limits: SchedulerLimits) -> None:
        """Discards the model: the stages may be different."""
        self._limits = limits
        priors = limits.guessed_costs or (UNKNOWN_DEVICE,)
        self._model = PipelineModel(priors)
        self._fallback.start_epoch(limits)
        self._num_in_flight = self._num_with_prompts = limits.num_steps_in_flight
        self._num_kept = {True: self._num_in_flight, False: self._num_in_flight}
        self._plan: CyclePlan | None = None
        self._num_until_plan = 0
        self._had_prompts = False
        self._is_fallback = False
        self._warmup_tokens = max(
            float(self._options.warmup_tokens),
            READING_ROWS * min(prior.fixed / prior.last_token for prior in priors),
        )
        self._costs = self._model.costs()
        self._decisions = DecisionCounts()

    def num_steps_in_flight(self, view: SchedulerView) -> int:
        """The plan's number; a new cycle is planned when all its microbatches have completed."""
        has_prompts = view.has_prompts
        if self._num_until_plan <= 0 or has_prompts != self._had_prompts:
            self._had_prompts = has_prompts
            self._make_plan(view)
        return self._num_in_flight

    def choose_decodes(self, view: SchedulerView) -> Sequence[int]:
        """An even share by predicted cost, within the rows not reserved for prompts."""
        if self._is_fallback:
            return self._fallback.choose_decodes(view)
        has_prompts = view.has_prompts
        max_rows = self._max_rows
        reserved = -(-max_rows // PROMPT_SHARE) if has_prompts else 0
        slowest = max(self._costs, key=lambda costs: costs.fixed)
        share = partition_decodes(
            view,
            self._num_in_flight,
            slowest.per_token + slowest.per_sample,
            slowest.per_context,
        )
        return [sequence.sequence_id for sequence in share[: max(1, max_rows - reserved)]]

    def chunk_tokens(
        self, view: SchedulerView, microbatch: MicrobatchView, sequence: SequenceView
    ) -> int:
        """The tokens that fill the microbatch to its target on every stage, in closed form."""
        if self._is_fallback:
            return self._fallback.chunk_tokens(view, microbatch, sequence)
        work = microbatch.work
        if not work.has_prompts and self._has_prompts_enough(view):
            return 0
        target = self._plan.target_seconds if self._plan is not None else math.inf
        room = min(
            costs.chunk_tokens(target - costs.seconds(work), work, sequence.num_sent)
            for costs in self._costs
        )
        least = 0 if work.has_prompts else MIN_CHUNK_TOKENS
        most = min(sequence.num_unsent, self._max_rows - work.num_tokens)
        wanted = min(most, max(least, room))
        if wanted < most and wanted < MIN_CHUNK_TOKENS:
            return 0  # a tiny chunk costs more than it gains
        if work.num_tokens == 0 and 0 < sequence.num_unsent - wanted < MIN_CHUNK_TOKENS:
            wanted = most  # avoids a tiny chunk in the next step
        return int(wanted)

    def complete(self, sent: SentStep, now: float) -> None:
        """Counts the cycle's steps, and learns the round trip."""
        self._num_until_plan -= 1
        self._model.complete(sent, now)

    def observe(self, record: StageRecord, sent: SentStep) -> None:
        """Learns a stage's costs."""
        self._model.observe(record, sent)

    def snapshot(self) -> PolicySnapshot:
        """The plan and the model."""
        plan, model = self._plan, self._model
        return PolicySnapshot(
            policy="adaptive",
            num_steps_in_flight=self._num_in_flight,
            target_seconds=plan.target_seconds if plan is not None else 0.0,
            target_tokens=plan.target_tokens if plan is not None else 0,
            planned_seconds=model.planned_seconds,
            actual_seconds=model.actual_seconds,
            overhead_seconds=model.overhead_seconds,
            error=model.error,
            warmup=self._is_warming_up,
            fallback=self._is_fallback,
            stages=tuple(model.stages()),
            decisions=self._decisions,
        )

    @property
    def _max_rows(self) -> int:
        return min(self._limits.max_step_tokens, int(self._warmup_tokens))

    @property
    def _is_warming_up(self) -> bool:
        return self._warmup_tokens < self._limits.max_step_tokens

    def _make_plan(self, view: SchedulerView) -> None:
        self._costs = self._model.costs()
        error, num_records = self._model.error, self._model.num_records
        was_fallback, before = self._is_fallback, self._num_in_flight
        self._is_fallback = num_records >= WARMUP_RECORDS and error > FALLBACK_ERROR
        if self._is_warming_up:
            is_trusted = num_records >= WARMUP_RECORDS and error < TRUSTED_ERROR
            self._warmup_tokens *= math.inf if is_trusted else WARMUP_GROWTH
            self._warmup_tokens = min(self._warmup_tokens, float(self._limits.max_step_tokens))
        prompts = prompt_backlog(view)
        load = cycle_load(view, prompts)
        has_prompts = load.num_prompt_tokens > 0
        options, lone_seconds = self._options, self._seconds_around(load.decodes(1))
        seconds = cycle_seconds(view, options.tpot_seconds, options.slack, lone_seconds)
        num_kept = self._num_kept[has_prompts]
        kept = (num_kept, min(self._num_with_prompts, num_kept))
        limits = CycleLimits(seconds, self._max_rows)
        basis = CycleBasis(self._costs, self._model.overhead_seconds, load)
        plan = CyclePlanner(basis, limits).plan
        self._plan = plan(*kept)
        if has_prompts:
            limits = replace(
                limits, prompt_cost_weight=prompt_cost_weight(view, prompts, self._plan.rate)
            )
            plan = CyclePlanner(basis, limits).plan
            self._plan = plan(*kept)
            if prompts.rate_slo > self._plan.rate:
                plan = CyclePlanner(basis, replace(limits, prompts_urgent=True)).plan
                self._plan = plan(*kept)
        if num_records >= WARMUP_RECORDS:
            self._plan = _next_plan(plan, self._plan, self._limits.num_steps_in_flight, has_prompts)
        self._num_in_flight = self._num_kept[has_prompts] = self._plan.num_in_flight
        if has_prompts:
            self._num_with_prompts = self._plan.num_with_prompts
        self._num_until_plan = self._num_in_flight
        made = self._decisions
        self._decisions = DecisionCounts(
            cycles=made.cycles + 1,
            more_in_flight=made.more_in_flight + (self._num_in_flight > before),
            fewer_in_flight=made.fewer_in_flight + (self._num_in_flight < before),
            fallbacks=made.fallbacks + (self._is_fallback and not was_fallback),
        )

    def _seconds_around(self, work: StepWork) -> float:
        """The round trip of a microbatch in an empty pipeline."""
        return sum(costs.seconds(work) for costs in self._costs) + self._model.overhead_seconds

    def _has_prompts_enough(self, view: SchedulerView) -> bool:
        """Whether enough steps in flight carry prompts by the plan."""
        return view.num_decoding > 0 and self._num_with_prompts <= sum(
            sent.work.has_prompts for sent in view.in_flight
        )


def _next_plan(
    plan: Callable[[int, int], CyclePlan], current: CyclePlan, most: int, has_prompts: bool
) -> CyclePlan:
    """The plan of the next cycle: steps in flight change by at most one.

    With prompts there are many plans, so only neighbouring ones are compared.
    """
    number = current.num_in_flight
    if has_prompts:
        nearby = range(max(1, number - 1), min(most, number + 1) + 1)
        return best_plan([plan(n, k) for n in nearby for k in range(n, 0, -1)], current)
    aim = best_plan([plan(n, 1) for n in range(1, most + 1)], current).num_in_flight
    return plan(number + (aim > number) - (aim < number), 1)
