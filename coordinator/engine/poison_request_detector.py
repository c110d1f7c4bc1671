"""Owns the suspicion that a request ends epochs: who ran at how many ends, and who must run alone.

It is told of starts, tokens and ends, and says whom to run alone and whom to blame.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

# Whoever ran at this many ends is suspected: it may be what ends the epochs.
NUM_SUSPICIOUS_ENDS: Final = 2


class PoisonRequestDetector:
    """The sequences of one engine, by id; lower ids are older."""

    def __init__(self, isolate: Callable[[int | None], None]) -> None:
        """`isolate` is told who runs alone from now on, and None when everybody may run again."""
        self._isolate = isolate
        # Who may run; None: everybody.
        self.isolated_id: int | None = None
        # Those that some step of this epoch carried: an end of the epoch counts against them.
        self._present: set[int] = set()
        self._num_ends: Counter[int] = Counter()

    def started(self, sequence_id: int) -> None:
        """A step of this epoch carries it."""
        self._present.add(sequence_id)

    def num_ends(self, sequence_id: int) -> int:
        """Ends at which it ran, since it was last seen to get on alone."""
        return self._num_ends.get(sequence_id, 0)

    def adopt(self, sequence_id: int, num_ends: int) -> None:
        """It comes from another replica, and ran at so many ends there."""
        if num_ends:
            self._num_ends[sequence_id] = num_ends
            self._choose()

    def made_progress(self, sequence_id: int) -> None:
        """It has one more token: one that runs alone has shown that it is innocent."""
        if sequence_id == self.isolated_id:
            del self._num_ends[sequence_id]
            self._choose()

    def forget(self, sequence_id: int) -> None:
        """It is finished, failed, cancelled or another replica's."""
        self._present.discard(sequence_id)
        self._num_ends.pop(sequence_id, None)
        if sequence_id == self.isolated_id:
            self._choose()

    def end_epoch(self, *, is_planned: bool = False) -> int | None:
        """Counts an end against all that ran; returns the one to blame, if it ran alone.

        A planned end counts against nobody.
        """
        if not is_planned:
            self._num_ends.update(self._present)
        poison_id = (
            self.isolated_id if self.isolated_id in self._present and not is_planned else None
        )
        self._present.clear()
        self._choose()
        return poison_id

    def _choose(self) -> None:
        counts = self._num_ends.items()
        detector = (number for number, count in counts if count >= NUM_SUSPICIOUS_ENDS)
        self.isolated_id = min(detector, default=None)
        self._isolate(self.isolated_id)
