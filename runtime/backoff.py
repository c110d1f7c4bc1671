"""Calculates pauses between attempts: exponential backoff up to a maximum, with optional jitter."""

import random
from dataclasses import dataclass
from typing import Final

# More doublings exceed any maximum in use, and a float overflows after 1,023.
_MAX_DOUBLINGS: Final = 64


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first_seconds` doubles with each further attempt, up to `max_seconds`."""

    first_seconds: float
    max_seconds: float

    def pause_seconds(self, attempt: int, jitter: random.Random | None = None) -> float:
        """The pause before retry number `attempt`, counted from 0.

        `jitter` scales it by a random factor in 0.5..1, so that clients of one server do not retry
        all at once.
        """
        pause = min(self.first_seconds * 2.0 ** min(attempt, _MAX_DOUBLINGS), self.max_seconds)
        return pause if jitter is None else pause * jitter.uniform(0.5, 1.0)
