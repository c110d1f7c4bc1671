"""The one thread that owns the device, and the record of when it was computing.

Everything that touches a Stage runs here, one call after the other, so a Stage needs no locks and
a call left over from an ended epoch cannot run beside one of the next.
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

# Sends overlap the few steps after theirs: outboxes are bounded, so older intervals are not asked.
_NUM_BUSY_INTERVALS = 32


@dataclass(frozen=True, slots=True)
class TimedResult(Generic[_T_co]):
    """A result with the time in which it was computed, in `time.monotonic` seconds."""

    value: _T_co
    begun_at: float
    ended_at: float


class DeviceThread:
    """Runs calls on the device's thread; used from one event loop."""

    def __init__(self, num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(
            1, "device", initializer=torch.set_num_threads, initargs=(num_threads,)
        )
        self._busy: deque[tuple[float, float]] = deque(maxlen=_NUM_BUSY_INTERVALS)
        self._computing_since: float | None = None

    async def run(self, call: Callable[[], _T]) -> _T:
        """Run `call` after those before it. Cancelling the wait does not stop a call that runs."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def compute(self, call: Callable[[], _T]) -> TimedResult[_T]:
        """Like `run`, for a step: its time counts as the device being busy."""
        return await self.run(lambda: self._timed(call))

    def busy_seconds(self, begin: float, end: float) -> float:
        """For how long of [begin, end] the device was computing steps."""
        intervals = list(self._busy)
        if self._computing_since is not None:
            intervals.append((self._computing_since, end))
        return sum(max(0.0, min(end, stop) - max(begin, start)) for start, stop in intervals)

    def close(self) -> None:
        """Take no more calls; a running one is left to end."""
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
