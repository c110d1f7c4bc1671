"""Measures what a pipeline makes of its time, whatever the policy: bubbles, and nearness to limits.

It is told what policies are told, and steers nothing.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from scheduler.cost_model.feedback import SentStep, StageRecord, StepWork
from scheduler.observability.bubbles import BubbleLedger, IdleGap
from scheduler.observability.snapshot import BubbleSeconds, EfficiencyRatios
from scheduler.sequences.sequence import TrackedSequence

NUM_STEPS = 128
NUM_SEQUENCES = 64
"""Ratios are those of the latest steps and sequences."""


@dataclass(slots=True)
class _Stay:
    """What the stages have told of one step so far, in seconds by stage."""

    compute: dict[int, float]
    idle: dict[int, float]
    inside_seconds: float = 0.0  # queued or computed
    queue_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Trip:
    """One step that is done; `around_seconds` is its way around less what it queued."""

    sent: SentStep
    done_at: float
    compute: tuple[float, ...]
    idle: tuple[float, ...]
    around_seconds: float


class PipelineMeter:
    """One epoch's account."""

    def __init__(self) -> None:
        self._bubbles = BubbleLedger()
        self._stays: dict[int, _Stay] = {}
        self._exposed_sends: dict[int, float] = {}
        self._slowest_seconds = 0.0
        self._num_stages = 0  # that have told of any step
        self._trips: deque[_Trip] = deque(maxlen=NUM_STEPS)
        self._tpots: deque[float] = deque(maxlen=NUM_SEQUENCES)
        self._ttfts: deque[tuple[int, float]] = deque(maxlen=NUM_SEQUENCES)
        # The best that was seen in the epoch: a step's least time on a stage, what a prompt's token
        # adds to it, and a way around besides computing.
        self._least_fixed = self._least_per_token = self._least_links = math.inf

    @property
    def bubbles(self) -> BubbleSeconds:
        """Idle seconds by cause, over all stages."""
        return self._bubbles.snapshot()

    def observe(self, record: StageRecord, sent: SentStep) -> None:
        """One stage's times of one step."""
        timing, stage = record.timing, record.stage
        self._num_stages = max(self._num_stages, stage + 1)
        if timing.send is not None:
            self._exposed_sends[stage] = timing.send.seconds - timing.send.hidden_seconds
        stay = self._stays.get(record.step)
        if stay is None:
            stay = self._stays[record.step] = _Stay({}, {})
        gap = IdleGap(
            seconds=timing.idle_seconds,
            upstream_seconds=stay.inside_seconds,
            behind_seconds=self._slowest_seconds - timing.compute_seconds,
            exposed_seconds=self._exposed_sends.get(stage - 1, 0.0),
        )
        self._bubbles.add(gap, sent)
        stay.compute[stage] = timing.compute_seconds
        stay.idle[stage] = timing.idle_seconds
        stay.inside_seconds += timing.queue_seconds + timing.compute_seconds
        stay.queue_seconds += timing.queue_seconds

    def complete(self, sent: SentStep, now: float) -> None:
        """A step's result has come."""
        stay = self._stays.pop(sent.number, None)
        for number in [number for number in self._stays if number < sent.number]:
            del self._stays[number]
        if stay is None or len(stay.compute) < self._num_stages or not sent.work.num_tokens:
            return  # a stage tells later; there will be other steps
        compute = tuple(stay.compute[stage] for stage in range(self._num_stages))
        idle = tuple(stay.idle[stage] for stage in range(self._num_stages))
        around_seconds = now - sent.sent_at - stay.queue_seconds
        self._trips.append(_Trip(sent, now, compute, idle, around_seconds))
        self._note_least(sent.work, compute, around_seconds)
        self._slowest_seconds += 0.1 * (max(compute) - self._slowest_seconds)

    def first_token(self, sequence: TrackedSequence, now: float) -> None:
        """A sequence has its first token."""
        num_computed = sequence.num_prompt_tokens - sequence.num_cached
        self._ttfts.append((num_computed, now - sequence.request.arrival))

    def finish(self, sequence: TrackedSequence, now: float) -> None:
        """A sequence has its last token."""
        if sequence.num_generated > 1 and sequence.first_token_at is not None:
            seconds = now - sequence.first_token_at
            self._tpots.append(seconds / (sequence.num_generated - 1))

    def _note_least(
        self, work: StepWork, compute: tuple[float, ...], around_seconds: float
    ) -> None:
        self._least_fixed = min(self._least_fixed, *compute)
        self._least_links = max(0.0, min(self._least_links, around_seconds - sum(compute)))
        if work.has_prompts:
            per_token = (min(compute) - self._least_fixed) / work.num_tokens
            self._least_per_token = min(self._least_per_token, per_token)

    @property
    def ratios(self) -> EfficiencyRatios:
        """NaN for what was not measured yet; M is the most steps that were in flight."""
        if not self._trips:
            return EfficiencyRatios()
        busy = self._busy_share()
        with_decodes = [trip.around_seconds for trip in self._trips if trip.sent.work.num_decodes]
        tpot = median(self._tpots) if self._tpots else math.nan
        return EfficiencyRatios(
            throughput=busy,
            # Over min(1, M*t_b/Lambda): steps that fill the pipeline can at most be busy always.
            occupancy=max(busy, self._share_of_places()),
            tpot=min(with_decodes) / tpot if with_decodes else math.nan,
            ttft=self._ttft_ratio(),
        )

    def _busy_share(self) -> float:
        """Of the stage that was busy for most of the time."""
        shares = []
        for stage in range(self._num_stages):
            compute = sum(trip.compute[stage] for trip in self._trips)
            total = compute + sum(trip.idle[stage] for trip in self._trips)
            shares.append(compute / total if total else 0.0)
        return max(shares)

    def _share_of_places(self) -> float:
        """Of M places in flight, the share in use by steps that moved.

        It is the busy share over M*t_b/Lambda: over W seconds n steps keep the slowest stage busy
        for n*t_b, and their ways around make n*Lambda of M*W.
        """
        first, last = self._trips[0], self._trips[-1]
        seconds = last.done_at - first.sent.sent_at
        num_places = max(trip.sent.num_others for trip in self._trips) + 1
        around = sum(trip.around_seconds for trip in self._trips)
        return around / (num_places * seconds) if seconds > 0.0 else 0.0

    def _ttft_ratio(self) -> float:
        """All stages are taken for the quickest at its best, so that the limit is one."""
        if not self._ttfts or math.isinf(self._least_per_token):
            return math.nan
        fixed, num_hops = self._least_fixed, self._num_stages - 1
        ratios = []
        for num_tokens, seconds in self._ttfts:
            work = self._least_per_token * num_tokens
            pieces = (math.sqrt(work) + math.sqrt(num_hops * fixed)) ** 2
            ratios.append((max(pieces, fixed) + self._least_links) / seconds if seconds else 1.0)
        return median(ratios)
