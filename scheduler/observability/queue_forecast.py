"""Predicts how long a full queue takes to shrink, from its recent rate of admissions."""

import math
from collections import deque

NUM_STARTS = 64
MAX_WAIT_SECONDS = 60


class QueueForecast:
    """The times of the latest admissions from the queue."""

    def __init__(self) -> None:
        self._starts: deque[float] = deque(maxlen=NUM_STARTS)

    def started(self, now: float) -> None:
        """Records an admission from the queue."""
        self._starts.append(now)

    def wait_seconds(self, num_starts: int, now: float) -> int:
        """Predicted seconds until `num_starts` more admissions, from 1 to 60.

        The time since the last admission counts, so the prediction of a stalled queue grows.
        """
        if not self._starts:
            return 1
        seconds = num_starts * (now - self._starts[0]) / len(self._starts)
        return max(1, min(MAX_WAIT_SECONDS, math.ceil(seconds)))
