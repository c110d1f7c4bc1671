"""Owns which workers tries that came to nothing are held against, also those that are out.

Pure. Blame passes with time: a link that was cut for a minute must not keep a worker from being
used for ever.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

# Half of a worker's blame is forgotten whenever nothing was added to it for so long. A worker that
# stays broken ends an epoch of fewer stages for another try no more often.
HALVING_SECONDS: Final = 600.0
# Less is none.
_LEAST: Final = Fraction(1, 8)
_NONE: Final = Fraction(0)
# All that there can be is less than the least by then.
_MAX_HALVINGS: Final = 64


@dataclass(frozen=True, slots=True)
class _Blame:
    """`since` is when it was last added to, or halved."""

    amount: Fraction
    since: float


class Blames:
    """By worker id, of so many workers at most; the latest come last. Times are in seconds."""

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self._blames: dict[str, _Blame] = {}

    def of(self, worker_id: str) -> Fraction:
        """One for each try that it has spoiled alone, less where others may have."""
        blame = self._blames.get(worker_id)
        return blame.amount if blame else _NONE

    def add(self, worker_id: str, part: Fraction, now: float) -> Fraction:
        """Its part in one more try; returns what it is in all."""
        amount = self.of(worker_id) + part
        self.drop(worker_id)
        self._blames[worker_id] = _Blame(amount, now)
        while len(self._blames) > self._max_workers:
            del self._blames[next(iter(self._blames))]
        return amount

    def drop(self, worker_id: str) -> None:
        """It is blamed for nothing any more."""
        self._blames.pop(worker_id, None)

    def halve(self, now: float) -> bool:
        """Forgets what has passed by `now`; whether that was anything."""
        due = [name for name, blame in self._blames.items() if _num_halvings(blame, now)]
        for name in due:
            blame = self._blames[name]
            count = _num_halvings(blame, now)
            amount = blame.amount / 2 ** min(count, _MAX_HALVINGS)
            if amount < _LEAST:
                del self._blames[name]
            else:
                self._blames[name] = _Blame(amount, blame.since + count * HALVING_SECONDS)
        return bool(due)


def _num_halvings(blame: _Blame, now: float) -> int:
    return int((now - blame.since) // HALVING_SECONDS)
