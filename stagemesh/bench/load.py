"""Sends the requests of a load test at their times, with bounded concurrency."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stagemesh.bench.callers import CALL_ERRORS, Caller
from stagemesh.bench.request_record import RequestRecord
from stagemesh.bench.workload import BenchRequest


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The records of all requests, in order of their scheduled times."""

    records: list[RequestRecord]
    duration_seconds: float


async def run_load(
    caller: Caller,
    requests: Sequence[BenchRequest],
    send_at: Sequence[float],
    max_concurrency: int | None,
    on_done: Callable[[int], None],
) -> LoadResult:
    """Sends `requests` at the seconds `send_at`, at most `max_concurrency` at a time.

    A request above this limit waits; its latency starts when it is sent. `on_done` receives the
    number of finished requests.
    """
    started = time.perf_counter()
    slots = asyncio.Semaphore(max_concurrency or len(requests))
    records: list[RequestRecord | None] = [None] * len(requests)
    num_done = 0

    def clock() -> float:
        return time.perf_counter() - started

    async def send(index: int) -> None:
        nonlocal num_done
        async with slots:
            record = records[index] = RequestRecord(clock())
            try:
                await caller.send(requests[index], record, clock)
                if not record.arrivals:
                    record.error = "the answer had no token"
            except CALL_ERRORS as error:
                record.error = str(error) or type(error).__name__
            record.ended_at = clock()
        num_done += 1
        on_done(num_done)

    async with asyncio.TaskGroup() as tasks:
        for index, seconds in enumerate(send_at):
            await asyncio.sleep(max(0.0, seconds - clock()))
            tasks.create_task(send(index))
    return LoadResult([record for record in records if record is not None], clock())
