"""The policy `adaptive`: work in predicted seconds on the slowest stage, learnt from timings.

It chooses, once a cycle, how many microbatches are in flight and how long each may take; and for
each microbatch, which decodes it carries and how long its prompt chunks are, so that all take
equal time. It never looks at a clock: all it knows of time was handed to it.
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
from scheduler.policies.adaptive.decode_partition import partition_decodes
from scheduler.policies.adaptive.planner import MIN_CHUNK_TOKENS, CyclePlan, CyclePlanner, best_plan
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
"""Until the error is below 15%, the rows of a microbatch grow at most so much in a cycle."""

PROMPT_SHARE = 8
"""One row in so many is kept for prompts while there are any: decodes never starve them."""

READING_ROWS = 2
"""The first microbatch may be as long as a stage reads its weights, so many times."""

UNKNOWN_DEVICE = guess_costs("cpu", weights_bytes=0, bytes_per_weight=4, num_layers=0)
"""Where a device is not known it is a CPU, on which chunks that are too long hurt most."""


@dataclass(frozen=True, slots=True)
class AdaptiveOptions:
    """Targets in seconds per output token, None for none; `slack` is the share kept in reserve.

    A target that not even a decode alone in the pipeline would keep counts as none.
    `warmup_tokens` are the rows that the first microbatch may have on any device.
    """

    tpot_seconds: float | None = None
    slack: float = 0.03
    warmup_tokens: int = 128


class AdaptivePolicy:
    """Steers by a model of the pipeline; falls back to `throttle` while the model is far off."""

    def __init__(self, options: AdaptiveOptions, throttle: ThrottleOptions) -> None:
        self._options = options
        self._fallback = ThrottlePolicy(throttle)

    def start_epoch(self, limits: SchedulerLimits) -> None:
        """Starts to learn anew: the stages may be others."""
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
        """As the plan of the cycle says; a new cycle begins when all its microbatches are back."""
        has_prompts = view.has_prompts
        if self._num_until_plan <= 0 or has_prompts != self._had_prompts:
            self._had_prompts = has_prompts
            self._make_plan(view)
        return self._num_in_flight

    def choose_decodes(self, view: SchedulerView) -> Sequence[int]:
        """An even share by predicted cost, less the rows that prompts are promised."""
        if self._is_fallback:
            return self._fallback.choose_decodes(view)
        has_prompts = view.has_prompts
        max_rows = self._max_rows
        rate_slo = -(-max_rows // PROMPT_SHARE) if has_prompts else 0
        slowest = max(self._costs, key=lambda costs: costs.fixed)
        share = partition_decodes(
            view,
            self._num_in_flight,
            slowest.per_token + slowest.per_sample,
            slowest.per_context,
        )
        return [sequence.sequence_id for sequence in share[: max(1, max_rows - rate_slo)]]

    def chunk_tokens(
        self, view: SchedulerView, microbatch: MicrobatchView, sequence: SequenceView
    ) -> int:
        """As many as bring the microbatch to its target on every stage, in closed form."""
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
            return 0  # a crumb costs more than it brings
        if work.num_tokens == 0 and 0 < sequence.num_unsent - wanted < MIN_CHUNK_TOKENS:
            wanted = most  # nor is one left for a step of its own
        return int(wanted)

    def complete(self, sent: SentStep, now: float) -> None:
        """Counts the cycle, and learns the way around."""
        self._num_until_plan -= 1
        self._model.complete(sent, now)

    def observe(self, record: StageRecord, sent: SentStep) -> None:
        """Learns a stage's costs."""
        self._model.observe(record, sent)

    def snapshot(self) -> PolicySnapshot:
        """All that it steers by."""
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
        """How long a microbatch takes that is alone in the pipeline."""
        return sum(costs.seconds(work) for costs in self._costs) + self._model.overhead_seconds

    def _has_prompts_enough(self, view: SchedulerView) -> bool:
        """Whether as many steps carry prompts as the plan wants; decodes alone go faster."""
        return view.num_decoding > 0 and self._num_with_prompts <= sum(
            sent.work.has_prompts for sent in view.in_flight
        )


def _next_plan(
    plan: Callable[[int, int], CyclePlan], current: CyclePlan, most: int, has_prompts: bool
) -> CyclePlan:
    """The plan of the next cycle: steps in flight change by one at a time.

    With prompts there are many ways to run a cycle, so only those nearby are looked at.
    """
    number = current.num_in_flight
    if has_prompts:
        nearby = range(max(1, number - 1), min(most, number + 1) + 1)
        return best_plan([plan(n, k) for n in nearby for k in range(n, 0, -1)], current)
    aim = best_plan([plan(n, 1) for n in range(1, most + 1)], current).num_in_flight
    return plan(number + (aim > number) - (aim < number), 1)
