"""Measures the lag of the event loop, which shows what blocks it."""

import asyncio
from typing import Final, Never

from prometheus_client import Histogram

_INTERVAL_SECONDS: Final = 0.25


async def observe_loop_lag(histogram: Histogram) -> Never:
    """Sleeps in a loop, and records the seconds by which it wakes too late; never returns."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + _INTERVAL_SECONDS
        await asyncio.sleep(_INTERVAL_SECONDS)
        histogram.observe(max(0.0, clock() - due))
