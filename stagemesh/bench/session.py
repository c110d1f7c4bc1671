"""Owns one load test from its settings to its report."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import RequestsFailedError
from stagemesh.bench.callers import API, CALL_ERRORS, ApiAddress, Caller, connect
from stagemesh.bench.figures import summarize
from stagemesh.bench.load import LoadResult, run_load
from stagemesh.bench.report import Load, as_json, as_text, draw
from stagemesh.bench.workload import POOL_TEXT, Ask, random_asks, read_asks, send_times
from stagemesh.client.rpc_error import StagemeshRpcError


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What to ask, where, and how; `prompts` None draws them at random."""

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

    async def run(self, on_done: Callable[[int], None]) -> tuple[Load, LoadResult]:
        """Asks everything; raises StagemeshRpcError where the API does not even say its model."""
        address = ApiAddress(self.api, self.target, self.api_key, self.tls_ca)
        async with connect(address, self.timeout_seconds, ignore_eos=self.ignore_eos) as caller:
            model, asks = await self._prepare(caller)
            for _ in range(self.num_warmups):
                await run_load(caller, asks[:1], [0.0], None, lambda done: None)
            moments = send_times(len(asks), self.request_rate, self.burstiness, self.seed)
            result = await run_load(caller, asks, moments, self.max_concurrency, on_done)
        return self._load(model), result

    async def _prepare(self, caller: Caller) -> tuple[str, list[Ask]]:
        asks = []
        if self.prompts is not None:
            asks = read_asks(self.prompts, self.num_prompts, self.output_len)
        try:
            model = await caller.model()
            if asks:
                return model, asks
            pool = await caller.token_ids(POOL_TEXT)
        except StagemeshRpcError:
            raise
        except CALL_ERRORS as error:
            problem = (
                f"no HTTP API answers at {self.target}: {str(error) or type(error).__name__}; "
                "give --target its HOST:PORT, whose port is 8000 by default"
            )
            raise StagemeshRpcError("unreachable", "UNAVAILABLE", problem) from None
        asks = random_asks(pool, self.num_prompts, self.input_len, self.output_len, self.seed)
        return model, asks

    def _load(self, model: str) -> Load:
        return Load(
            model,
            self.num_prompts,
            self.request_rate,
            self.burstiness,
            self.max_concurrency,
            self.targets,
        )


def tell(load: Load, result: LoadResult, save: Path | None, plot: Path | None) -> None:
    """Prints and writes the report; raises `RequestsFailedError` if there were such."""
    figures = summarize(result, load.targets)
    sys.stdout.write(as_text(load, figures) + "\n")
    if save is not None:
        save.write_text(json.dumps(as_json(load, figures, result), indent=2) + "\n")
    if plot is not None:
        draw(load, result, plot)
    if figures.num_failed:
        first = next(outcome.error for outcome in result.outcomes if outcome.error)
        raise RequestsFailedError(
            num_failed=figures.num_failed, num_requests=load.num_prompts, first=first
        )
