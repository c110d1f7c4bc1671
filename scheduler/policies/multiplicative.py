"""The policy `multiplicative`: a token budget that grows and shrinks by factors.

The first rule of this project, corrected: the score (throughput over latency) is normalised to the
best mean in its history, which makes the threshold meaningful (a mean never reaches the best single
score); a size of 1 can grow; it adapts once per `NUM_RECENT` results and not on each call; one
instance controls the whole replica.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

from scheduler.cost_model.feedback import SentStep, StageRecord
from scheduler.limits import SchedulerLimits
from scheduler.observability.snapshot import PolicySnapshot
from scheduler.policies.fixed import FixedPolicy
from scheduler.policies.interface import MicrobatchView, SchedulerView, SequenceView

NUM_RECENT = 10
"""Results between two adaptations, and the window of each."""


@dataclass(frozen=True, slots=True)
class MultiplicativeOptions:
    """Sizes are rows of a microbatch; `threshold` is a share of the best mean score."""

    base_size: int = 256
    min_size: int = 16
    max_size: int = 4096
    growth: float = 1.5
    shrink: float = 0.7
    threshold: float = 0.95
    history: int = 100
    latency_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Performance:
    """One step's performance: rows per second of the replica, and its round trip."""

    size: int
    throughput: float
    latency_seconds: float

    @property
    def score(self) -> float:
        """Higher is better; only ratios of scores are meaningful."""
        return self.throughput / self.latency_seconds


class MultiplicativePolicy:
    """Batches as `fixed` does, within a budget that follows the recent scores."""

    def __init__(self, options: MultiplicativeOptions) -> None:
        self._options = options
        self._num_in_flight = 0
        self._history: deque[Performance] = deque(maxlen=options.history)
        self._mean_scores: deque[float] = deque(maxlen=max(1, options.history // NUM_RECENT))
        self._num_new = 0
        self._completed_at: float | None = None
        self._resize(options.base_size)

    @property
    def size(self) -> int:
        """The current budget."""
        return self._size

    def start_epoch(self, limits: SchedulerLimits) -> None:
        """Starts from the base size: earlier measurements are of other stages."""
        self._num_in_flight = limits.num_steps_in_flight
        self._history.clear()
        self._mean_scores.clear()
        self._num_new = 0
        self._completed_at = None
        self._resize(self._options.base_size)

    def num_steps_in_flight(self, view: SchedulerView) -> int:
        """The maximum of the limits."""
        return view.limits.num_steps_in_flight

    def choose_decodes(self, view: SchedulerView) -> Sequence[int]:
        """As `fixed`, within the current size."""
        return self._batching.choose_decodes(view)

    def chunk_tokens(
        self, view: SchedulerView, microbatch: MicrobatchView, sequence: SequenceView
    ) -> int:
        """As `fixed`, within the current size."""
        return self._batching.chunk_tokens(view, microbatch, sequence)

    def complete(self, sent: SentStep, now: float) -> None:
        """Records a step's performance; adapts the size after every `NUM_RECENT` steps."""
        began_at = sent.sent_at if self._completed_at is None else self._completed_at
        self._completed_at = now
        interval = now - max(began_at, sent.sent_at if sent.num_others == 0 else began_at)
        if interval <= 0.0 or sent.work.num_tokens == 0:
            return
        throughput = sent.work.num_tokens / interval
        self._history.append(Performance(self._size, throughput, now - sent.sent_at))
        self._num_new += 1
        if self._num_new >= NUM_RECENT:
            self._num_new = 0
            self._adapt()

    def observe(self, record: StageRecord, sent: SentStep) -> None:
        """Does nothing: the score needs no single stage."""

    def snapshot(self) -> PolicySnapshot:
        """The current size."""
        return PolicySnapshot(
            policy="multiplicative",
            num_steps_in_flight=self._num_in_flight,
            target_tokens=self._size,
        )

    def best_size(self, latency_seconds: float | None = None) -> int | None:
        """The size with the highest mean score in the history.

        With a latency, the size with the highest throughput among those whose mean latency meets
        it; None if no size does, or nothing was measured.
        """
        by_size: defaultdict[int, list[Performance]] = defaultdict(list)
        for performance in self._history:
            by_size[performance.size].append(performance)
        if latency_seconds is None:
            scores = {size: fmean(each.score for each in them) for size, them in by_size.items()}
        else:
            scores = {
                size: fmean(each.throughput for each in them)
                for size, them in by_size.items()
                if fmean(each.latency_seconds for each in them) <= latency_seconds
            }
        return max(scores, key=lambda size: (scores[size], -size), default=None)

    def _adapt(self) -> None:
        options = self._options
        recent = list(islice(reversed(self._history), NUM_RECENT))
        score = fmean(each.score for each in recent)
        self._mean_scores.append(score)
        too_slow = options.latency_seconds is not None and (
            fmean(performance.latency_seconds for performance in recent) > options.latency_seconds
        )
        grows = score > options.threshold * max(self._mean_scores)
        if grows and not too_slow:
            self._resize(max(self._size + 1, int(self._size * options.growth)))
            return
        shrunk = int(self._size * options.shrink)
        known = self.best_size(options.latency_seconds) if too_slow else None
        self._resize(shrunk if known is None or known >= self._size else known)

    def _resize(self, size: int) -> None:
        self._size = max(self._options.min_size, min(self._options.max_size, size))
        self._batching = FixedPolicy(self._size)
