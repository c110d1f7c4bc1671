"""The one thread that uses the device, and the times at which it computed steps.

All calls of a stage runner run here, one after the other. The stage runner needs no locks, and a
call left from an ended epoch cannot run during a call of the next.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

# A send overlaps only the few steps after its own, because outboxes are bounded.
_NUM_BUSY_INTERVALS = 32


@dataclass(frozen=True, slots=True)
class TimedResult(Generic[_T_co]):
    """A result and the interval of its computation, in `time.monotonic` seconds."""

    value: _T_co
    begun_at: float
    ended_at: float


class DeviceThread:
    """Runs calls on the device's thread, on behalf of one event loop."""

    def __init__(self, num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(
            1, "device", initializer=torch.set_num_threads, initargs=(num_threads,)
        )
        self._busy: deque[tuple[float, float]] = deque(maxlen=_NUM_BUSY_INTERVALS)
        self._computing_since: float | None = None

    async def run(self, call: Callable[[], _T]) -> _T:
        """Runs `call` after all earlier ones. Cancellation does not stop a running call."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def compute(self, call: Callable[[], _T]) -> TimedResult[_T]:
        """Like `run`, for a step: its time counts as busy."""
        return await self.run(lambda: self._timed(call))

    def busy_seconds(self, begin: float, end: float) -> float:
        """Seconds within [begin, end] in which the device computed steps."""
        intervals = list(self._busy)
        if self._computing_since is not None:
            intervals.append((self._computing_since, end))
        return sum(max(0.0, min(end, stop) - max(begin, start)) for start, stop in intervals)

    def close(self) -> None:
        """Accepts no more calls; a running one is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _timed(self, call: Callable[[], _T]) -> TimedResult[_T]:
        begun_at = time.monotonic()
        self._computing_since = begun_at
        try:
            value = call()
        finally:
            ended_at = time.monotonic()
            self._computing_since = None
            self._busy.append((begun_at, ended_at))
        return TimedResult(value, begun_at, ended_at)
