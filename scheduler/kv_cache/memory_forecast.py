"""Predicts the peak of the KV cache, to admit only sequences that probably fit to their ends.

A sequence's length is predicted from the lengths of recent answers that were longer than it is
now, at a quantile that is fixed per sequence. The peak over a set of sequences follows in closed
form: when one ends, all that still run have grown by as much as it has (Past-Future scheduler, Gong
et al., ASPLOS 2025). An underestimate costs a preemption.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.sequences.sequence import TrackedSequence

NUM_LENGTHS = 512
NUM_TRUSTED = 16
"""Number of answers from which measured lengths replace the guess."""
GUESSED_LENGTHS = (16, 32, 64, 128, 256, 512)
_GOLDEN_RATIO = 0.6180339887498949

_Floats = NDArray[np.float64]


class OutputLengths:
    """The lengths of recently finished answers, in tokens."""

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=NUM_LENGTHS)
        self._sorted: _Floats = np.array(GUESSED_LENGTHS, dtype=np.float64)
        self._is_stale = False

    def add(self, num_tokens: int) -> None:
        self._lengths.append(num_tokens)
        self._is_stale = True

    def predict(self, num_generated: _Floats, quantiles: _Floats) -> _Floats:
        """Predicts final lengths from current ones; doubles those that no known answer exceeds."""
        if self._is_stale and len(self._lengths) >= NUM_TRUSTED:
            self._sorted = np.sort(np.array(self._lengths, dtype=np.float64))
            self._is_stale = False
        known = self._sorted
        shorter = np.searchsorted(known, num_generated, side="right")
        index = shorter + (quantiles * (len(known) - shorter)).astype(np.int64)
        predicted = known[np.minimum(index, len(known) - 1)]
        return np.where(shorter < len(known), predicted, 2.0 * num_generated)


def num_admissible(
    running: Sequence[TrackedSequence],
    waiting: Sequence[TrackedSequence],
    lengths: OutputLengths,
    capacity_tokens: float,
) -> int:
    """The number of `waiting` sequences, from the first, that probably fit to their ends.

    `capacity_tokens` counts blocks shared by running sequences once per holder; positions that
    waiting sequences would share (`num_shared`) are subtracted from theirs.
    """
    both = [*running, *waiting]
    known = np.array([len(sequence.token_ids) for sequence in both], dtype=np.float64)
    prompts = np.array([each.num_prompt_tokens for each in both], dtype=np.float64)
    final = np.array([sequence.final_len for sequence in both], dtype=np.float64)
    ids = np.array([sequence.sequence_id for sequence in both], dtype=np.float64)
    predicted = lengths.predict(known - prompts, ids * _GOLDEN_RATIO % 1.0)
    left = np.maximum(np.minimum(prompts + predicted, final) - known, 0.0)
    held = known.copy()
    held[len(running) :] -= [sequence.num_shared for sequence in waiting]

    def fits(number: int) -> bool:
        end = len(running) + number
        return _peak(held[:end], left[:end]) <= capacity_tokens

    if fits(len(waiting)):
        return len(waiting)
    # Usually few fit, so the search starts with few.
    fewest, too_many, stride = 0, len(waiting), 1
    while fewest + 1 < too_many:
        number = min(fewest + stride, (fewest + too_many) // 2)
        if fits(number):
            fewest, stride = number, 2 * stride
        else:
            too_many = number
    # Alone, the first one fits: `check_fits` passed when it was added.
    return fewest if running else max(1, fewest)


def _peak(held: _Floats, left: _Floats) -> float:
    """The maximum number of tokens that these sequences hold together at any time."""
    last_first = np.argsort(-left)
    num_running = np.arange(1, len(left) + 1)
    return float((np.cumsum(held[last_first]) + num_running * left[last_first]).max())
