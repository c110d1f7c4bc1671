"""Detects requests that end epochs: counts the ends during which each ran, and isolates suspects.

Input are starts, tokens and ends; output are the sequence to run alone and the one at fault.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

# A sequence that ran at this many ends of epochs is a suspect.
NUM_SUSPICIOUS_ENDS: Final = 2


class PoisonRequestDetector:
    """The sequences of one engine, by id; lower ids are older."""

    def __init__(self, isolate: Callable[[int | None], None]) -> None:
        """`isolate` is called with the only sequence that may run, or with None for all."""
        self._isolate = isolate
        # The only sequence that may run; None for all.
        self.isolated_id: int | None = None
        # Sequences in the steps of this epoch: its end counts for them.
        self._present: set[int] = set()
        self._num_ends: Counter[int] = Counter()

    def started(self, sequence_id: int) -> None:
        """Records that a step of this epoch contains the sequence."""
        self._present.add(sequence_id)

    def num_ends(self, sequence_id: int) -> int:
        """Ends at which the sequence ran, since it last made progress alone."""
        return self._num_ends.get(sequence_id, 0)

    def adopt(self, sequence_id: int, num_ends: int) -> None:
        """Adds a sequence that ran at `num_ends` ends on another replica."""
        if num_ends:
            self._num_ends[sequence_id] = num_ends
            self._isolate_oldest_suspect()

    def made_progress(self, sequence_id: int) -> None:
        """Records a new token, which clears a sequence that runs alone."""
        if sequence_id == self.isolated_id:
            del self._num_ends[sequence_id]
            self._isolate_oldest_suspect()

    def forget(self, sequence_id: int) -> None:
        """Drops a sequence that finished, failed, was cancelled or moved to another replica."""
        self._present.discard(sequence_id)
        self._num_ends.pop(sequence_id, None)
        if sequence_id == self.isolated_id:
            self._isolate_oldest_suspect()

    def end_epoch(self, *, is_planned: bool = False) -> int | None:
        """Counts an end for all sequences that ran; returns the one at fault, if it ran alone.

        A planned end counts for none.
        """
        poison_id = None
        if not is_planned:
            self._num_ends.update(self._present)
            poison_id = self.isolated_id if self.isolated_id in self._present else None
        self._present.clear()
        self._isolate_oldest_suspect()
        return poison_id

    def _isolate_oldest_suspect(self) -> None:
        counts = self._num_ends.items()
        suspects = (number for number, count in counts if count >= NUM_SUSPICIOUS_ENDS)
        self.isolated_id = min(suspects, default=None)
        self._isolate(self.isolated_id)
