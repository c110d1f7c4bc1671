"""Owns what tries that came to nothing are held against: workers, also those that are out, links.

Pure. Blame passes with time: a link that was cut for a minute must not keep a worker from being
used for ever.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Generic, TypeVar

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


# What is blamed: a worker's id, or a link's two.
_Name = TypeVar("_Name", bound=Hashable)


class DecayingScores(Generic[_Name]):
    """By name, of so many at most; the latest come last. Times are in seconds."""

    def __init__(self, max_names: int, halving_seconds: float | None = None) -> None:
        self._max_names = max_names
        self._halving_seconds = halving_seconds or HALVING_SECONDS
        self._blames: dict[_Name, _Blame] = {}

    def of(self, name: _Name) -> Fraction:
        """One for each try that it has spoiled alone, less where others may have."""
        blame = self._blames.get(name)
        return blame.amount if blame else _NONE

    def at_least(self, amount: int) -> frozenset[_Name]:
        """Those that are blamed for so much."""
        return frozenset(name for name, blame in self._blames.items() if blame.amount >= amount)

    def add(self, name: _Name, part: Fraction, now: float) -> Fraction:
        """Its part in one more try; returns what it is in all."""
        amount = self.of(name) + part
        self.drop(name)
        self._blames[name] = _Blame(amount, now)
        while len(self._blames) > self._max_names:
            del self._blames[next(iter(self._blames))]
        return amount

    def drop(self, name: _Name) -> None:
        """It is blamed for nothing any more."""
        self._blames.pop(name, None)

    def clear(self) -> None:
        """Nobody is blamed for anything any more."""
        self._blames.clear()

    def halve(self, now: float) -> bool:
        """Forgets what has passed by `now`; whether that was anything."""
        due = [name for name, blame in self._blames.items() if self._num_halvings(blame, now)]
        for name in due:
            blame = self._blames[name]
            count = self._num_halvings(blame, now)
            amount = blame.amount / 2 ** min(count, _MAX_HALVINGS)
            if amount < _LEAST:
                del self._blames[name]
            else:
                self._blames[name] = _Blame(amount, blame.since + count * self._halving_seconds)
        return bool(due)

    def _num_halvings(self, blame: _Blame, now: float) -> int:
        return int((now - blame.since) // self._halving_seconds)
