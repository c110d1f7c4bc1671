"""Owns the run of a load test: who is sent when, how many at a time, and what is noted."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stagemesh.bench.callers import CALL_ERRORS, Caller
from stagemesh.bench.outcome import Outcome
from stagemesh.bench.workload import Ask


@dataclass(frozen=True, slots=True)
class LoadResult:
    """All requests of a load, in the order in which they were to be sent."""

    outcomes: list[Outcome]
    duration_seconds: float


async def run_load(
    caller: Caller,
    asks: Sequence[Ask],
    send_at: Sequence[float],
    max_concurrency: int | None,
    on_done: Callable[[int], None],
) -> LoadResult:
    """Sends `asks` at their moments, no more than `max_concurrency` at a time.

    A request that has to wait for its turn is sent later; its times count from when it is sent.
    `on_done` is told how many have ended.
    """
    started = time.perf_counter()
    turns = asyncio.Semaphore(max_concurrency or len(asks))
    outcomes: list[Outcome | None] = [None] * len(asks)
    num_done = 0

    def clock() -> float:
        return time.perf_counter() - started

    async def one(index: int) -> None:
        nonlocal num_done
        async with turns:
            outcome = outcomes[index] = Outcome(clock())
            try:
                await caller.ask(asks[index], outcome, clock)
                if not outcome.arrivals:
                    outcome.error = "the answer had no token"
            except CALL_ERRORS as error:
                outcome.error = str(error) or type(error).__name__
            outcome.ended_at = clock()
        num_done += 1
        on_done(num_done)

    async with asyncio.TaskGroup() as tasks:
        for index, moment in enumerate(send_at):
            await asyncio.sleep(max(0.0, moment - clock()))
            tasks.create_task(one(index))
    return LoadResult([outcome for outcome in outcomes if outcome is not None], clock())
