"""Keeps the fault scores of workers and links: failed attempts, and failures while serving.

Scores outlive a worker's membership and decay with time. A worker over the limit of failed attempts
is evicted. A worker that failed while serving is only deprioritized: a request may be the cause.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from coordinator.membership.worker_record import WorkerRecord

# A replica with fewer stages ends its epoch to include a worker below the limit: at most this often
# for a worker that stays broken.
HALF_LIFE_SECONDS: Final = 600.0
# Going around a link makes other workers load weights, and coming back makes them load again.
_LINK_HALF_LIFE_SECONDS: Final = 3600.0
# A link with this score is used only where there is no other way.
_BROKEN_LINK_SCORE: Final = 2.0
# Below the cut-off a score is dropped.
_MIN_SCORE: Final = 0.125
# After 64 halvings any score is below the cut-off; avoids an overflow of 2.0**n.
_MAX_HALVINGS: Final = 64
# n shares of 1/n add up to 1 exactly once they are rounded.
_NUM_DIGITS: Final = 6

Link = tuple[str, str]
"""Ids of the sending and of the receiving worker."""

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(slots=True)
class _Score:
    """`since` is the time of the last increase or halving."""

    value: float
    since: float


class DecayingScores(Generic[KeyT]):
    """Scores by key that halve after each half-life without an increase; times are in seconds.

    Holds at most `max_keys` scores, of which the one that increased longest ago is dropped first.
    """

    def __init__(self, max_keys: int, half_life_seconds: float) -> None:
        self._max_keys = max_keys
        self._half_life_seconds = half_life_seconds
        self._scores: dict[KeyT, _Score] = {}

    def get(self, key: KeyT) -> float:
        """The score as of the last decay; 0 for an unknown key."""
        score = self._scores.get(key)
        return round(score.value, _NUM_DIGITS) if score else 0.0

    def at_least(self, minimum: float) -> frozenset[KeyT]:
        """The keys whose score is `minimum` or more."""
        return frozenset(key for key in self._scores if self.get(key) >= minimum)

    def add(self, key: KeyT, amount: float, now: float) -> None:
        """Increases a score."""
        score = self._scores.pop(key, _Score(0.0, now))
        self._scores[key] = _Score(score.value + amount, now)
        while len(self._scores) > self._max_keys:
            del self._scores[next(iter(self._scores))]

    def discard(self, key: KeyT) -> None:
        """Resets one score to 0."""
        self._scores.pop(key, None)

    def clear(self) -> None:
        """Resets all scores to 0."""
        self._scores.clear()

    def decay(self, now: float) -> bool:
        """Applies the halvings that are due by `now`; returns whether there were any."""
        due = {
            key: num_halvings
            for key, score in self._scores.items()
            if (num_halvings := int((now - score.since) // self._half_life_seconds))
        }
        for key, num_halvings in due.items():
            score = self._scores[key]
            score.value /= 2.0 ** min(num_halvings, _MAX_HALVINGS)
            score.since += num_halvings * self._half_life_seconds
            if score.value < _MIN_SCORE:
                del self._scores[key]
        return bool(due)


class FaultScores:
    """Scores of at most `max_workers` workers and as many links; times are in seconds.

    The only writer of a worker record's `fault_score`, `failure_score` and `has_served`.
    """

    def __init__(self, max_workers: int) -> None:
        self._faults = DecayingScores[str](max_workers, HALF_LIFE_SECONDS)
        self._failures = DecayingScores[str](max_workers, HALF_LIFE_SECONDS)
        self._links = DecayingScores[Link](max_workers, _LINK_HALF_LIFE_SECONDS)

    @property
    def broken_links(self) -> frozenset[Link]:
        """The links that failed more than one attempt and have not served since."""
        return self._links.at_least(_BROKEN_LINK_SCORE)

    def sync(self, *workers: WorkerRecord) -> None:
        """Copies the scores to the records of the workers."""
        for worker in workers:
            worker.fault_score = self._faults.get(worker.identity.worker_id)
            worker.failure_score = self._failures.get(worker.identity.worker_id)

    def record_fault(self, suspects: Iterable[WorkerRecord], now: float) -> list[WorkerRecord]:
        """Counts an attempt that one of `suspects` failed; returns those over the limit.

        Each suspect gets the same share of 1. Suspects that have departed get none: their departure
        was noticed by itself.
        """
        present = [worker for worker in suspects if not worker.departed.is_set()]
        for worker in present:
            self._faults.add(worker.identity.worker_id, 1.0 / len(present), now)
        self.sync(*present)
        return [worker for worker in present if worker.exceeds_fault_limit]

    def record_link_fault(self, link: Link, now: float) -> None:
        """Counts an attempt that failed because the sender did not reach the receiver."""
        self._links.add(link, 1.0, now)

    def record_failure(self, workers: Iterable[WorkerRecord], now: float) -> None:
        """Counts an epoch that served until one of `workers`, the ranks of a stage, failed."""
        for worker in workers:
            self._failures.add(worker.identity.worker_id, 1.0, now)
            self.sync(worker)

    def reset_failures(self, workers: Iterable[WorkerRecord]) -> None:
        """Drops all failures while serving: a request was found to end epochs."""
        self._failures.clear()
        self.sync(*workers)

    def clear(self, workers: Iterable[WorkerRecord], links: Iterable[Link]) -> None:
        """Drops the faults of workers that serve together over `links`.

        Their failures while serving stay, because these may happen again.
        """
        for worker in workers:
            worker.has_served = True
            self._faults.discard(worker.identity.worker_id)
            self.sync(worker)
        for link in links:
            self._links.discard(link)

    def decay(self, workers: Iterable[WorkerRecord], now: float) -> bool:
        """Applies the halvings that are due by `now`; returns whether there were any."""
        decayed = [each.decay(now) for each in (self._faults, self._failures, self._links)]
        self.sync(*workers)
        return any(decayed)
