"""Owns how long a replica keeps trying: what its failures so far say about the next try.

Pure. Before the first service, the operator waits for an answer, so what would end the same way
again is told, once no workers can be on their way that have waited for the coordinator
(`replica_plan.py`): at once where its launcher starts them all. A mesh that has served waits for
better workers instead.
"""

from typing import Final

from runtime.backoff import Backoff
from runtime.errors import (
    BadRequestError,
    BrokenModelError,
    LinkBrokenError,
    RefusedWorkerError,
    StagemeshError,
    WorkerDiedError,
    WorkerFailedError,
)

# These say that the next try would end the same way with the same workers.
LASTING: Final = (BadRequestError, BrokenModelError, RefusedWorkerError)

# Tries in a row that failed in the very same words: the next one would too.
_MAX_EQUAL_FAILURES: Final = 5


class FormationRetryPolicy:
    """The failures of one replica; pauses are in seconds."""

    def __init__(self, backoff_seconds: float, max_backoff_seconds: float) -> None:
        self._backoff = Backoff(backoff_seconds, max_backoff_seconds)
        self._last_words = ""
        self._num_failures = 0
        self._num_equal_failures = 0

    def count(self, cause: StagemeshError, *, has_just_served: bool) -> None:
        """One more epoch is over, or did not come to serve."""
        words = _words(cause)
        is_same, self._last_words = words == self._last_words, words
        self._num_failures = 0 if has_just_served else self._num_failures + 1
        self._num_equal_failures = self._num_equal_failures + 1 if is_same else 1

    def should_give_up(
        self, cause: StagemeshError, *, has_served: bool, has_alternatives: bool = False
    ) -> bool:
        """Whether to give up after `cause`, which was counted.

        Never once the mesh has served, nor while `has_alternatives`: workers below the fault limit
        that could form the replica instead.
        """
        if has_served or has_alternatives:
            return False
        is_repeated = min(self._num_failures, self._num_equal_failures) >= _MAX_EQUAL_FAILURES
        if is_repeated and not isinstance(cause, WorkerDiedError):
            return True
        return isinstance(cause, LASTING)

    @property
    def pause_seconds(self) -> float:
        """The pause before the next attempt; doubles with each attempt in a row that fails."""
        return self._backoff.pause_seconds(self._num_failures)


def _words(cause: StagemeshError) -> str:
    """What makes two failures equal; which worker failed, and of how many bytes, is by chance.

    So it is which of two workers was to reach the other.
    """
    by_chance = isinstance(cause, (WorkerFailedError, LinkBrokenError))
    return cause.code if by_chance else str(cause)
