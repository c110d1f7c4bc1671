"""Measures a pipeline's efficiency: bubbles by cause, and latency and throughput against limits.

It receives the same feedback as policies and controls nothing.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from scheduler.cost_model.feedback import SentStep, StageRecord, StepTimings, TimingCollector
from scheduler.observability.snapshot import BubbleSeconds, EfficiencyRatios
from scheduler.sequences.sequence import TrackedSequence


@dataclass(frozen=True, slots=True)
class IdleGap:
    """A stage's idle time before one step.

    `upstream_seconds` is the step's time in earlier stages, `behind_seconds` the difference in
    compute time to the slowest stage, `exposed_seconds` the part of the previous stage's last
    known send that compute did not hide.
    """

    seconds: float
    upstream_seconds: float
    behind_seconds: float
    exposed_seconds: float


class BubbleLedger:
    """Idle seconds by cause since the epoch began."""

    def __init__(self) -> None:
        self._starved = 0.0
        self._fill = 0.0
        self._imbalance = 0.0
        self._exposed_send = 0.0
        self._coordinator = 0.0

    def add(self, gap: IdleGap, sent: SentStep) -> None:
        """Splits one gap among the causes, in order."""
        if sent.num_others == 0:
            fill = min(gap.seconds, gap.upstream_seconds)
            self._fill += fill
            self._starved += gap.seconds - fill
            return
        imbalance = min(gap.seconds, max(0.0, gap.behind_seconds))
        left = gap.seconds - imbalance
        exposed = min(left, max(0.0, gap.exposed_seconds))
        self._imbalance += imbalance
        self._exposed_send += exposed
        if sent.is_full:
            self._coordinator += left - exposed
        else:
            self._starved += left - exposed

    def snapshot(self) -> BubbleSeconds:
        """The sums so far."""
        return BubbleSeconds(
            starved=self._starved,
            fill=self._fill,
            imbalance=self._imbalance,
            exposed_send=self._exposed_send,
            coordinator=self._coordinator,
        )


NUM_STEPS = 128
NUM_SEQUENCES = 64
"""Windows of the ratios: the latest steps and sequences."""


class PipelineMeter:
    """Measurements of one epoch."""

    def __init__(self) -> None:
        self._bubbles = BubbleLedger()
        self._timings = TimingCollector()
        self._exposed_sends: dict[int, float] = {}
        self._slowest_seconds = 0.0
        self._num_stages = 0  # that have reported any step
        self._steps: deque[StepTimings] = deque(maxlen=NUM_STEPS)
        self._tpots: deque[float] = deque(maxlen=NUM_SEQUENCES)
        self._ttfts: deque[tuple[int, float]] = deque(maxlen=NUM_SEQUENCES)
        # Minima of the epoch: a step's time on a stage, the time that a prompt token adds to it,
        # and a round step without compute.
        self._least_fixed = self._least_per_token = self._least_links = math.inf

    @property
    def bubbles(self) -> BubbleSeconds:
        """Idle seconds by cause, over all stages."""
        return self._bubbles.snapshot()

    def observe(self, record: StageRecord, sent: SentStep) -> None:
        """Records one stage's timing of one step."""
        timing, stage = record.timing, record.stage
        self._num_stages = max(self._num_stages, stage + 1)
        if timing.send is not None:
            self._exposed_sends[stage] = timing.send.seconds - timing.send.hidden_seconds
        timings = self._timings.of(sent)
        gap = IdleGap(
            seconds=timing.idle_seconds,
            upstream_seconds=timings.inside_seconds,
            behind_seconds=self._slowest_seconds - timing.compute_seconds,
            exposed_seconds=self._exposed_sends.get(stage - 1, 0.0),
        )
        self._bubbles.add(gap, sent)
        timings.add(record)

    def complete(self, sent: SentStep, now: float) -> None:
        """Records a step's result."""
        timings = self._timings.complete(sent, self._num_stages, now)
        if timings is None or not sent.work.num_tokens:
            return  # some stage reports later; other steps follow
        self._steps.append(timings)
        self._update_minima(timings)
        self._slowest_seconds += 0.1 * (max(timings.compute.values()) - self._slowest_seconds)

    def first_token(self, sequence: TrackedSequence, now: float) -> None:
        """Records a sequence's time to first token."""
        num_computed = sequence.num_prompt_tokens - sequence.num_cached
        self._ttfts.append((num_computed, now - sequence.request.arrival))

    def finish(self, sequence: TrackedSequence, now: float) -> None:
        """Records a finished sequence's time per output token."""
        if sequence.num_generated > 1 and sequence.first_token_at is not None:
            seconds = now - sequence.first_token_at
            self._tpots.append(seconds / (sequence.num_generated - 1))

    def _update_minima(self, timings: StepTimings) -> None:
        compute, work = timings.compute.values(), timings.sent.work
        self._least_fixed = min(self._least_fixed, *compute)
        links = timings.round_trip_seconds - sum(compute)
        self._least_links = max(0.0, min(self._least_links, links))
        if work.has_prompts:
            per_token = (min(compute) - self._least_fixed) / work.num_tokens
            self._least_per_token = min(self._least_per_token, per_token)

    @property
    def ratios(self) -> EfficiencyRatios:
        """Ratios to the limits; NaN where not measured. M is the maximum of steps in flight."""
        if not self._steps:
            return EfficiencyRatios()
        busy = self._busy_share()
        with_decodes = [
            step.round_trip_seconds for step in self._steps if step.sent.work.num_decodes
        ]
        tpot = median(self._tpots) if self._tpots else math.nan
        return EfficiencyRatios(
            throughput=busy,
            # Relative to min(1, M*t_b/Lambda): with a full pipeline the limit is 1.
            occupancy=max(busy, self._moving_share()),
            tpot=min(with_decodes) / tpot if with_decodes else math.nan,
            ttft=self._ttft_ratio(),
        )

    def _busy_share(self) -> float:
        """The busy share of the busiest stage."""
        shares = []
        for stage in range(self._num_stages):
            compute = sum(step.compute[stage] for step in self._steps)
            total = compute + sum(step.idle[stage] for step in self._steps)
            shares.append(compute / total if total else 0.0)
        return max(shares)

    def _moving_share(self) -> float:
        """The mean share of M steps in flight that are outside queues.

        It equals the busy share over M*t_b/Lambda: in W seconds, n steps keep the slowest stage
        busy for n*t_b, and their round trips take n*Lambda of M*W.
        """
        first, last = self._steps[0], self._steps[-1]
        seconds = last.done_at - first.sent.sent_at
        max_in_flight = max(step.sent.num_others for step in self._steps) + 1
        round_trips = sum(step.round_trip_seconds for step in self._steps)
        return round_trips / (max_in_flight * seconds) if seconds > 0.0 else 0.0

    def _ttft_ratio(self) -> float:
        """Assumes the fastest stage's minimum for all stages, so that the ratio is at most 1."""
        if not self._ttfts or math.isinf(self._least_per_token):
            return math.nan
        fixed, num_hops = self._least_fixed, self._num_stages - 1
        ratios = []
        for num_tokens, seconds in self._ttfts:
            work = self._least_per_token * num_tokens
            pieces = (math.sqrt(work) + math.sqrt(num_hops * fixed)) ** 2
            ratios.append((max(pieces, fixed) + self._least_links) / seconds if seconds else 1.0)
        return median(ratios)
