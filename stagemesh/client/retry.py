"""Decides whether and when a failed generation is retried.

A retry keeps the request id, and happens only before the first update of an answer:

- if the server was reached and then became unreachable, such as during its restart; a server that
  never answered is not retried;
- if the server rejected the request for lack of capacity and sent a delay (`RetryInfo`).

Every other failure is final: the request may have caused it, or would be rejected again.
"""

import random
import time
from collections.abc import Callable
from typing import Final

from runtime.backoff import Backoff
from stagemesh.client.rpc_error import StagemeshRpcError

RETRY_SECONDS: Final = 30.0
_BACKOFF: Final = Backoff(first_seconds=0.1, max_seconds=2.0)
# Error codes of a server that stopped or is stopping.
_STOPPED_CODES: Final = ("unreachable", "shutting_down")
# The gRPC status of a rejection for lack of capacity.
_NO_CAPACITY: Final = "RESOURCE_EXHAUSTED"


class Attempts:
    """The attempts of one generation; all of them share one deadline."""

    def __init__(
        self,
        timeout_seconds: float | None,
        retry_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Retries end `retry_seconds` after the first failure; 0 disables them."""
        self._clock = clock
        self._deadline = None if timeout_seconds is None else clock() + timeout_seconds
        self._retry_seconds = retry_seconds
        self._give_up_at: float | None = None
        self._was_reached = False
        self._num_failures = 0
        self._jitter = random.Random()

    @property
    def timeout_seconds(self) -> float | None:
        """Seconds until the deadline; None without a deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def pause_after(
        self, error: StagemeshRpcError, *, was_reached: bool, has_updates: bool
    ) -> float:
        """Seconds to wait before the next attempt; raises `error` if it is final.

        `was_reached`: a server accepted the call. `has_updates`: the answer had started.
        """
        now = self._clock()
        self._was_reached |= was_reached
        if self._give_up_at is None:
            self._give_up_at = now + self._retry_seconds
        if has_updates or not self._is_transient(error):
            raise error
        # The jitter separates clients that got the same `retry_after_seconds`.
        pause_seconds = _BACKOFF.pause_seconds(self._num_failures, self._jitter)
        pause_seconds += error.retry_after_seconds or 0.0
        self._num_failures += 1
        left = min(self._give_up_at, self._deadline or self._give_up_at) - now
        if pause_seconds > left:
            raise error
        return pause_seconds

    def _is_transient(self, error: StagemeshRpcError) -> bool:
        if error.code in _STOPPED_CODES:
            return self._was_reached
        return error.status == _NO_CAPACITY and error.retry_after_seconds is not None
