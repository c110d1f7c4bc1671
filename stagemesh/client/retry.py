"""Owns when a generation that failed is asked for again: only if that cannot give anything twice.

Only while nothing of the answer has come, and always under the same request id:

- a server that was there and went away, as one that restarts does, is asked again; one that never
  was there is not waited for;
- a server that has no room now is asked again when it says so (`RetryInfo`), and not before.

All else is final: a refusal that stays one, and a failure that the request itself may have caused.
"""

import random
import time
from collections.abc import Callable
from typing import Final

from runtime.backoff import Backoff
from stagemesh.client.rpc_error import StagemeshRpcError

RETRY_SECONDS: Final = 30.0
_BACKOFF: Final = Backoff(first_seconds=0.1, max_seconds=2.0)
# The server is gone, or says that it goes.
_GONE: Final = ("unreachable", "shutting_down")
# What refuses a request that has cost nothing yet, and may have room for it later.
_NO_ROOM: Final = "RESOURCE_EXHAUSTED"


class Attempts:
    """The tries of one generation; its deadline is that of all of them together."""

    def __init__(
        self,
        timeout_seconds: float | None,
        retry_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`retry_seconds` is how long to go on after the first failure; 0: not at all."""
        self._clock = clock
        self._deadline = None if timeout_seconds is None else clock() + timeout_seconds
        self._retry_seconds = retry_seconds
        self._give_up_at: float | None = None
        self._was_reached = False
        self._num_failures = 0
        self._jitter = random.Random()

    @property
    def timeout_seconds(self) -> float | None:
        """What is left of the deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def pause_after(
        self, error: StagemeshRpcError, *, was_reached: bool, has_updates: bool
    ) -> float:
        """Seconds to wait before the next try; raises `error` if there is none.

        `was_reached` says that a server took the call.
        """
        now = self._clock()
        self._was_reached |= was_reached
        if self._give_up_at is None:
            self._give_up_at = now + self._retry_seconds
        if has_updates or not self._may_pass(error):
            raise error
        # The jitter separates clients that got the same `retry_after_seconds`.
        pause_seconds = _BACKOFF.pause_seconds(self._num_failures, self._jitter)
        pause_seconds += error.retry_after_seconds or 0.0
        self._num_failures += 1
        left = min(self._give_up_at, self._deadline or self._give_up_at) - now
        if pause_seconds > left:
            raise error
        return pause_seconds

    def _may_pass(self, error: StagemeshRpcError) -> bool:
        if error.code in _GONE:
            return self._was_reached
        return error.status == _NO_ROOM and error.retry_after_seconds is not None
