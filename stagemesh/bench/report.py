"""Formats the results of a load test: vLLM's text report, JSON, and a plot."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime.errors import InvalidRequestError
from stagemesh.bench.callers import LoadResult
from stagemesh.bench.statistics import LATENCIES, LoadStatistics, latencies

_WIDTH: Final = 50
_TITLES: Final = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The settings of a load; `request_rate` None sends all requests at once."""

    model: str
    num_prompts: int
    request_rate: float | None
    burstiness: float
    max_concurrency: int | None
    targets: Mapping[str, float]


def as_text(load: LoadSettings, statistics: LoadStatistics) -> str:
    """The text report, with the layout of vLLM's `bench serve`."""
    lines = [f"{' Serving Benchmark Result ':=^{_WIDTH}}"]
    lines += [f"{name:<40} {_number(value):<10}" for name, value in _rows(load, statistics)]
    for name in LATENCIES:
        spread = statistics.spreads[name]
        lines.append(f"{_TITLES[name]:-^{_WIDTH}}")
        for word, value in (("Mean", spread.mean), ("Median", spread.median), ("P99", spread.p99)):
            lines.append(f"{f'{word} {name.upper()} (ms):':<40} {value:<10.2f}")
    return "\n".join(line.rstrip() for line in [*lines, "=" * _WIDTH])


def _rows(load: LoadSettings, statistics: LoadStatistics) -> Iterator[tuple[str, float]]:
    yield "Successful requests:", statistics.num_completed
    yield "Failed requests:", statistics.num_failed
    if load.max_concurrency is not None:
        yield "Maximum request concurrency:", load.max_concurrency
    if load.request_rate is not None:
        yield "Request rate configured (RPS):", float(load.request_rate)
    yield "Benchmark duration (s):", statistics.duration_seconds
    yield "Total input tokens:", statistics.num_input_tokens
    yield "Total generated tokens:", statistics.num_output_tokens
    yield "Request throughput (req/s):", statistics.request_rate
    if statistics.goodput is not None:
        yield "Request goodput (req/s):", statistics.goodput
    yield "Output token throughput (tok/s):", statistics.output_rate
    yield "Total token throughput (tok/s):", statistics.token_rate


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def as_json(load: LoadSettings, statistics: LoadStatistics, result: LoadResult) -> dict[str, Any]:
    """The statistics and all requests, with the names of vLLM's result file."""
    body: dict[str, Any] = {
        "model_id": load.model,
        "num_prompts": load.num_prompts,
        "request_rate": "inf" if load.request_rate is None else load.request_rate,
        "burstiness": load.burstiness,
        "max_concurrency": load.max_concurrency,
        "duration": statistics.duration_seconds,
        "completed": statistics.num_completed,
        "failed": statistics.num_failed,
        "total_input_tokens": statistics.num_input_tokens,
        "total_output_tokens": statistics.num_output_tokens,
        "request_throughput": statistics.request_rate,
        "request_goodput": statistics.goodput,
        "goodput_targets_ms": dict(load.targets),
        "output_throughput": statistics.output_rate,
        "total_token_throughput": statistics.token_rate,
    }
    for name, spread in statistics.spreads.items():
        for word in ("mean", "median", "std", "p99"):
            body[f"{word}_{name}_ms"] = getattr(spread, word)
    records = result.records
    body["input_lens"] = [record.num_input_tokens for record in records]
    body["output_lens"] = [record.num_output_tokens for record in records]
    body["start_times"] = [record.sent_at for record in records]
    body["ttfts"] = [record.ttft if record.arrivals else None for record in records]
    body["itls"] = [record.gaps for record in records]
    body["errors"] = [record.error for record in records]
    return body


def draw(load: LoadSettings, result: LoadResult, path: Path) -> None:
    """Writes a PNG file with the cumulative distribution of each latency.

    Raises `InvalidRequestError` if matplotlib, an optional dependency, is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        problem = "it needs matplotlib; install it with: pip install 'stagemesh[plot]'"
        raise InvalidRequestError(field="--plot", problem=problem) from None
    values = latencies([record for record in result.records if not record.error])
    figure = Figure(figsize=(4 * len(LATENCIES), 3.5), layout="constrained")
    figure.suptitle(f"{load.model}: {load.num_prompts} requests")
    for axes, name in zip(figure.subplots(1, len(LATENCIES)), LATENCIES, strict=True):
        milliseconds = [value * 1e3 for value in values[name]]
        if milliseconds:
            axes.ecdf(milliseconds)
        if name in load.targets:
            axes.axvline(load.targets[name], linestyle="--", color="#d95f02")
        axes.set_title(_TITLES[name], fontsize=10)
        axes.set_xlabel("ms")
        axes.set_ylim(0, 1)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
