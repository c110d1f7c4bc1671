"""Owns the measurement of how late an event loop is: what blocks it shows up here."""

import asyncio
from typing import Final, Never

from prometheus_client import Histogram

_INTERVAL_SECONDS: Final = 0.25


async def observe_loop_lag(histogram: Histogram) -> Never:
    """Never returns: sleeps, and observes how many seconds too late it was woken."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + _INTERVAL_SECONDS
        await asyncio.sleep(_INTERVAL_SECONDS)
        histogram.observe(max(0.0, clock() - due))
