"""Owns what is held against workers and links: tries that came to nothing, and failures at work.

It outlives membership, and passes with time. A worker that is guilty of a try is put out. One that
served until it failed is not, because it may be a request's fault: it only gives way to others.
"""

from collections.abc import Iterable
from fractions import Fraction
from typing import Final

from coordinator.membership.decaying_score import DecayingScores
from coordinator.membership.worker_record import WorkerRecord

# A link that so many tries were held against is used no more where there is another way.
_BROKEN_LINK: Final = 2
# Other workers load weights to go around it, and again to come back: not every ten minutes.
_LINK_HALVING_SECONDS: Final = 3600.0

Link = tuple[str, str]
"""Worker ids: who sends, and to whom."""


class FaultScores:
    """Of so many workers at most, and as many links. Times are in seconds."""

    def __init__(self, max_workers: int) -> None:
        self._tries: DecayingScores[str] = DecayingScores(max_workers)
        self._failures: DecayingScores[str] = DecayingScores(max_workers)
        self._links: DecayingScores[Link] = DecayingScores(max_workers, _LINK_HALVING_SECONDS)

    @property
    def broken_links(self) -> frozenset[Link]:
        """Those that more than one try was held against, and none that served since."""
        return self._links.at_least(_BROKEN_LINK)

    def sync(self, worker: WorkerRecord) -> None:
        """Tells a member what is held against it."""
        worker.blame = self._tries.of(worker.identity.worker_id)
        worker.num_failures = self._failures.of(worker.identity.worker_id)

    def blame(self, suspects: Iterable[WorkerRecord], now: float) -> list[WorkerRecord]:
        """Counts a try that one of `suspects` has spoiled; returns those that are guilty by now.

        Each gets the same part of the blame. One that left by itself is not blamed: nobody had to
        find out that it is gone.
        """
        there = [worker for worker in suspects if not worker.departed.is_set()]
        for worker in there:
            self._tries.add(worker.identity.worker_id, Fraction(1, len(there)), now)
            self.sync(worker)
        return [worker for worker in there if worker.exceeds_fault_limit]

    def record_link_fault(self, link: Link, now: float) -> None:
        """Counts a try that came to nothing because the one does not reach the other."""
        self._links.add(link, Fraction(1), now)

    def record_failure(self, workers: Iterable[WorkerRecord], now: float) -> None:
        """Counts an epoch that served until one of these failed: the ranks of a stage."""
        for worker in workers:
            self._failures.add(worker.identity.worker_id, Fraction(1), now)
            self.sync(worker)

    def reset_failures(self, workers: Iterable[WorkerRecord]) -> None:
        """A request was found to end epochs, so nobody is known to have failed by itself."""
        self._failures.clear()
        for worker in workers:
            self.sync(worker)

    def clear(self, workers: Iterable[WorkerRecord], links: Iterable[Link]) -> None:
        """They serve together over `links`, so none of them spoils every try.

        What failed at work may do so again.
        """
        for worker in workers:
            worker.has_served = True
            self._tries.drop(worker.identity.worker_id)
            self.sync(worker)
        for link in links:
            self._links.drop(link)

    def decay(self, workers: Iterable[WorkerRecord], now: float) -> bool:
        """Forgets what has passed by `now`; whether that was anything."""
        passed = [each.halve(now) for each in (self._tries, self._failures, self._links)]
        for worker in workers:
            self.sync(worker)
        return any(passed)
