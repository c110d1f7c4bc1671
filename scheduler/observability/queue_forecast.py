"""Predicts how long a waiting line needs to get shorter, from how fast it did lately."""

import math
from collections import deque

NUM_STARTS = 64
MAX_WAIT_SECONDS = 60


class QueueForecast:
    """The latest times at which somebody in line got a slot."""

    def __init__(self) -> None:
        self._starts: deque[float] = deque(maxlen=NUM_STARTS)

    def started(self, now: float) -> None:
        """One of those in line got a slot."""
        self._starts.append(now)

    def wait_seconds(self, num_starts: int, now: float) -> int:
        """When so many more will have got one: whole seconds from 1 to a minute.

        The time since the last start counts too, so that a line that stands has no good forecast.
        """
        if not self._starts:
            return 1
        seconds = num_starts * (now - self._starts[0]) / len(self._starts)
        return max(1, min(MAX_WAIT_SECONDS, math.ceil(seconds)))
