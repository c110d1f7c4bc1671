"""Runs one load test: prepares the requests, sends them, and writes the reports."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import RequestsFailedError
from stagemesh.bench.callers import (
    API,
    CALL_ERRORS,
    ApiTarget,
    Caller,
    LoadResult,
    RequestRecord,
    connect,
)
from stagemesh.bench.report import LoadSettings, as_json, as_text, draw
from stagemesh.bench.statistics import summarize
from stagemesh.bench.workload import (
    POOL_TEXT,
    BenchRequest,
    random_requests,
    read_requests,
    send_times,
)
from stagemesh.client.rpc_error import StagemeshRpcError


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTest:
    """The options of a load test; `prompts` None generates random prompts."""

    api: API
    target: str
    api_key: str | None
    tls_ca: Path | None
    num_prompts: int
    request_rate: float | None
    burstiness: float
    max_concurrency: int | None
    num_warmups: int
    input_len: int
    output_len: int
    prompts: Path | None
    ignore_eos: bool
    targets: dict[str, float]
    seed: int
    timeout_seconds: float

    async def run(self, on_done: Callable[[int], None]) -> tuple[LoadSettings, LoadResult]:
        """Sends all requests; raises StagemeshRpcError if the API does not report its model."""
        address = ApiTarget(self.api, self.target, self.api_key, self.tls_ca)
        async with connect(address, self.timeout_seconds, ignore_eos=self.ignore_eos) as caller:
            model, requests = await self._prepare(caller)
            for _ in range(self.num_warmups):
                await run_load(caller, requests[:1], [0.0], None, lambda done: None)
            send_at = send_times(len(requests), self.request_rate, self.burstiness, self.seed)
            result = await run_load(caller, requests, send_at, self.max_concurrency, on_done)
        return self._load(model), result

    async def _prepare(self, caller: Caller) -> tuple[str, list[BenchRequest]]:
        requests = []
        if self.prompts is not None:
            requests = read_requests(self.prompts, self.num_prompts, self.output_len)
        try:
            model = await caller.model()
            if requests:
                return model, requests
            pool = await caller.token_ids(POOL_TEXT)
        except StagemeshRpcError:
            raise
        except CALL_ERRORS as error:
            problem = (
                f"no HTTP API answers at {self.target}: {str(error) or type(error).__name__}; "
                "set --target to its HOST:PORT, by default port 8000"
            )
            raise StagemeshRpcError("unreachable", "UNAVAILABLE", problem) from None
        requests = random_requests(
            pool, self.num_prompts, self.input_len, self.output_len, self.seed
        )
        return model, requests

    def _load(self, model: str) -> LoadSettings:
        return LoadSettings(
            model,
            self.num_prompts,
            self.request_rate,
            self.burstiness,
            self.max_concurrency,
            self.targets,
        )


def report(load: LoadSettings, result: LoadResult, save: Path | None, plot: Path | None) -> None:
    """Prints and writes the report; raises `RequestsFailedError` if any request failed."""
    statistics = summarize(result, load.targets)
    sys.stdout.write(as_text(load, statistics) + "\n")
    if save is not None:
        save.write_text(json.dumps(as_json(load, statistics, result), indent=2) + "\n")
    if plot is not None:
        draw(load, result, plot)
    if statistics.num_failed:
        first = next(record.error for record in result.records if record.error)
        raise RequestsFailedError(
            num_failed=statistics.num_failed, num_requests=load.num_prompts, first=first
        )
