"""Decides how long a replica keeps retrying, and how long it pauses between attempts.

Pure. Before the first service the operator waits for an answer, so a failure that would repeat is
final once no more workers are expected (`plan_selection.py`). A mesh that has served retries
forever, and waits for better workers.
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

# The next attempt with the same workers would fail in the same way.
_LASTING: Final = (BadRequestError, BrokenModelError, RefusedWorkerError)

# After this many failures in a row with the same description, the next attempt would fail, too.
_MAX_EQUAL_FAILURES: Final = 5


class FormationRetryPolicy:
    """The failures of one replica."""

    def __init__(self, backoff_seconds: float, max_backoff_seconds: float) -> None:
        self._backoff = Backoff(backoff_seconds, max_backoff_seconds)
        self._last_description = ""
        self._num_failures = 0
        self._num_equal_failures = 0

    def record_failure(self, cause: StagemeshError, *, has_just_served: bool) -> None:
        """Counts the end of an attempt, or of an epoch that served."""
        description = _describe(cause)
        is_same, self._last_description = description == self._last_description, description
        self._num_failures = 0 if has_just_served else self._num_failures + 1
        self._num_equal_failures = self._num_equal_failures + 1 if is_same else 1

    def should_give_up(
        self, cause: StagemeshError, *, has_served: bool, has_alternatives: bool = False
    ) -> bool:
        """Whether to give up after `cause`, which was recorded.

        Never once the mesh has served, nor while `has_alternatives`: workers below the fault limit
        that could form the replica instead.
        """
        if has_served or has_alternatives:
            return False
        is_repeated = min(self._num_failures, self._num_equal_failures) >= _MAX_EQUAL_FAILURES
        if is_repeated and not isinstance(cause, WorkerDiedError):
            return True
        return isinstance(cause, _LASTING)

    @property
    def pause_seconds(self) -> float:
        """The pause before the next attempt; doubles with each attempt in a row that fails."""
        return self._backoff.pause_seconds(self._num_failures)


def _describe(cause: StagemeshError) -> str:
    """The description by which failures are equal.

    Without the worker, link and sizes for errors where these vary by chance.
    """
    varies = isinstance(cause, (WorkerFailedError, LinkBrokenError))
    return cause.code if varies else str(cause)
