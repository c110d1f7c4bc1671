"""How soon a mesh is back at its best after one of its stages has slowed down.

Decodes only, always as many of them. A cycle is the time in which every decode gets one token, so
the tokens of any one sequence count the cycles.
"""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from stagemesh import AsyncClient, GenerationRequest, TokenIds

NUM_SMOOTHED = 5
GOOD_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Recovery:
    """Tokens a second before the change and long after it, and the cycles from one to the other."""

    rate_before: float
    rate_after: float
    num_cycles: int
    seconds: float


async def decode_for(client: AsyncClient, num_sequences: int, seconds: float) -> list[list[float]]:
    """When each of so many endless sequences got its tokens, in seconds since the beginning."""
    times: list[list[float]] = [[] for _ in range(num_sequences)]
    began_at = time.monotonic()

    async def one(index: int) -> None:
        request = GenerationRequest(
            prompts=(TokenIds((3 + index, 5, 7)),), max_tokens=8000, ignore_eos=True
        )
        async for update in client.infer(request):
            now = time.monotonic() - began_at
            times[index] += [now] * len(update.tokens)
            if now >= seconds:
                return

    async with asyncio.TaskGroup() as tasks:
        for index in range(num_sequences):
            tasks.create_task(one(index))
    return times


def find_recovery(times: Sequence[Sequence[float]], changed_at: float) -> Recovery:
    """Cycles from the change until the rate of five of them stays at 95% of the settled rate."""
    every = sorted(time for sequence in times for time in sequence)
    marks = [time for time in times[0] if time >= changed_at]
    rates = [
        (bisect_right(every, end) - bisect_right(every, begin)) / (end - begin)
        for begin, end in pairwise(marks)
        if end > begin
    ]
    settled = median(rates[len(rates) // 2 :])
    smoothed = [fmean(rates[i : i + NUM_SMOOTHED]) for i in range(len(rates) - NUM_SMOOTHED + 1)]
    back = next(i for i, rate in enumerate(smoothed) if rate >= GOOD_SHARE * settled)
    begin = changed_at / 2
    before = bisect_right(every, changed_at) - bisect_right(every, begin)
    return Recovery(before / (changed_at - begin), settled, back, marks[back] - changed_at)
