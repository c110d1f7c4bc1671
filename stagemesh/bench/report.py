"""Owns how a load test is told: the block that people know from vLLM, JSON, and a picture."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime.errors import InvalidRequestError
from stagemesh.bench.figures import LATENCIES, Figures, latencies
from stagemesh.bench.load import LoadResult

_WIDTH: Final = 50
_TITLES: Final = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


@dataclass(frozen=True, slots=True)
class Load:
    """What was asked for; `request_rate` None sends all at once."""

    model: str
    num_prompts: int
    request_rate: float | None
    burstiness: float
    max_concurrency: int | None
    targets: Mapping[str, float]


def as_text(load: Load, figures: Figures) -> str:
    """The report block."""
    lines = [f"{' Serving Benchmark Result ':=^{_WIDTH}}"]
    lines += [f"{name:<40} {_number(value):<10}" for name, value in _rows(load, figures)]
    for name in LATENCIES:
        spread = figures.spreads[name]
        lines.append(f"{_TITLES[name]:-^{_WIDTH}}")
        for word, value in (("Mean", spread.mean), ("Median", spread.median), ("P99", spread.p99)):
            lines.append(f"{f'{word} {name.upper()} (ms):':<40} {value:<10.2f}")
    return "\n".join(line.rstrip() for line in [*lines, "=" * _WIDTH])


def _rows(load: Load, figures: Figures) -> Iterator[tuple[str, float]]:
    yield "Successful requests:", figures.num_completed
    yield "Failed requests:", figures.num_failed
    if load.max_concurrency is not None:
        yield "Maximum request concurrency:", load.max_concurrency
    if load.request_rate is not None:
        yield "Request rate configured (RPS):", float(load.request_rate)
    yield "Benchmark duration (s):", figures.duration_seconds
    yield "Total input tokens:", figures.num_input_tokens
    yield "Total generated tokens:", figures.num_output_tokens
    yield "Request throughput (req/s):", figures.request_rate
    if figures.goodput is not None:
        yield "Request goodput (req/s):", figures.goodput
    yield "Output token throughput (tok/s):", figures.output_rate
    yield "Total token throughput (tok/s):", figures.token_rate


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def as_json(load: Load, figures: Figures, result: LoadResult) -> dict[str, Any]:
    """The figures under the names that vLLM's result file has, then every request."""
    body: dict[str, Any] = {
        "model_id": load.model,
        "num_prompts": load.num_prompts,
        "request_rate": "inf" if load.request_rate is None else load.request_rate,
        "burstiness": load.burstiness,
        "max_concurrency": load.max_concurrency,
        "duration": figures.duration_seconds,
        "completed": figures.num_completed,
        "failed": figures.num_failed,
        "total_input_tokens": figures.num_input_tokens,
        "total_output_tokens": figures.num_output_tokens,
        "request_throughput": figures.request_rate,
        "request_goodput": figures.goodput,
        "goodput_targets_ms": dict(load.targets),
        "output_throughput": figures.output_rate,
        "total_token_throughput": figures.token_rate,
    }
    for name, spread in figures.spreads.items():
        for word in ("mean", "median", "std", "p99"):
            body[f"{word}_{name}_ms"] = getattr(spread, word)
    outcomes = result.outcomes
    body["input_lens"] = [outcome.num_input_tokens for outcome in outcomes]
    body["output_lens"] = [outcome.num_output_tokens for outcome in outcomes]
    body["start_times"] = [outcome.sent_at for outcome in outcomes]
    body["ttfts"] = [outcome.ttft if outcome.arrivals else None for outcome in outcomes]
    body["itls"] = [outcome.gaps for outcome in outcomes]
    body["errors"] = [outcome.error for outcome in outcomes]
    return body


def draw(load: Load, result: LoadResult, path: Path) -> None:
    """Writes a PNG: how large a share of the requests was at most so slow, for each latency.

    Raises InvalidRequestError where matplotlib, which only this needs, is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        problem = "needs matplotlib: pip install 'stagemesh[plot]'"
        raise InvalidRequestError(field="--plot", problem=problem) from None
    values = latencies([outcome for outcome in result.outcomes if not outcome.error])
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
