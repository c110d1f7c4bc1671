"""The time that a mesh needs to reach its maximum rate after one stage has slowed down.

The load is a constant number of decodes. A cycle is the time in which every decode gets one token,
so the tokens of any sequence count the cycles.
"""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from benchmarks.live_load import make_replay
from runtime.errors import InvalidRequestError
from scheduler import PolicyName, PolicySnapshot
from simulator.model.pacing import PacedModel
from simulator.workload.traces import TraceRequest
from stagemesh import AsyncClient, GenerationRequest, TokenIds

NUM_SMOOTHED = 5
"""Cycles in the moving mean of a rate, and consecutive good cycles that end a recovery."""
GOOD_SHARE = 0.95
PROMPT_TOKENS = 3
MAX_TOKENS = 8000


@dataclass(frozen=True, slots=True)
class RateRecovery:
    """Tokens per second before the change and long after it, and the cycles in between.

    None where the rate never came to stay at that of long after.
    """

    rate_before: float
    rate_after: float
    num_cycles: int | None
    seconds: float | None


async def decode_for(client: AsyncClient, num_sequences: int, seconds: float) -> list[list[float]]:
    """Token times of `num_sequences` endless sequences, in seconds since the start."""
    times: list[list[float]] = [[] for _ in range(num_sequences)]
    began_at = time.monotonic()

    async def one(index: int) -> None:
        request = GenerationRequest(
            prompts=(TokenIds((3 + index, 5, 7)),), max_tokens=MAX_TOKENS, ignore_eos=True
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


def simulate_decodes(
    pace: PacedModel, layers: Sequence[int], policy: PolicyName, num_sequences: int, num_tokens: int
) -> tuple[list[list[float]], PolicySnapshot]:
    """Token times in the simulator, and the policy's snapshot at the end."""
    times: list[list[float]] = [[] for _ in range(num_sequences)]
    trace = (TraceRequest(0.0, PROMPT_TOKENS, num_tokens),) * num_sequences
    replay = make_replay(pace, layers, policy, trace, lambda index, now: times[index].append(now))
    return times, replay.run().policy_snapshot


def find_recovery(times: Sequence[Sequence[float]], changed_at: float) -> RateRecovery:
    """Cycles from the change until the rate is back at 95% of the settled one, and stays there.

    The settled rate is the median of the second half of the cycles. A faster cycle counts like a
    settled one: the first ends with what was sent before the change, which must not make up for
    the slow ones after it. Raises `InvalidRequestError` if there are too few cycles.
    """
    every = sorted(time for sequence in times for time in sequence)
    marks = [time for time in times[0] if time >= changed_at]
    rates = [
        (bisect_right(every, end) - bisect_right(every, begin)) / (end - begin)
        for begin, end in pairwise(marks)
        if end > begin
    ]
    if len(rates) < 4 * NUM_SMOOTHED:
        problem = f"{len(rates)} cycles after the change are too few: run for longer"
        raise InvalidRequestError(field="--seconds", problem=problem)
    settled = median(rates[len(rates) // 2 :])
    capped = [min(rate, settled) for rate in rates]
    good = [
        fmean(capped[first : first + NUM_SMOOTHED]) >= GOOD_SHARE * settled
        for first in range(len(capped) - NUM_SMOOTHED + 1)
    ]
    starts = range(len(good) - NUM_SMOOTHED + 1)
    back = next((first for first in starts if all(good[first : first + NUM_SMOOTHED])), None)
    begin = changed_at / 2
    before = bisect_right(every, changed_at) - bisect_right(every, begin)
    seconds = None if back is None else marks[back] - changed_at
    return RateRecovery(before / (changed_at - begin), settled, back, seconds)


def recovery_cells(found: RateRecovery) -> tuple[str, ...]:
    """The rates, and the recovery time in cycles and seconds."""
    return (
        f"{found.rate_before:.1f}",
        f"{found.rate_after:.1f}",
        "never" if found.num_cycles is None else str(found.num_cycles),
        "-" if found.seconds is None else f"{found.seconds:.2f}",
    )
