"""Calculates the statistics of a load test, with the definitions of vLLM's `bench serve`.

TTFT: from sending a request to its first token. TPOT: a request's time after its first token, per
token after the first. ITL: between two chunks of an answer, over all requests. E2EL: from sending a
request to its end. Goodput: the rate of requests that meet every target.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stagemesh.bench.callers import LoadResult, RequestRecord

LATENCIES: Final = ("ttft", "tpot", "itl", "e2el")
TARGETS: Final[Mapping[str, Callable[[RequestRecord], float | None]]] = {
    "ttft": lambda record: record.ttft,
    "tpot": lambda record: record.tpot,
    "e2el": lambda record: record.latency,
}


@dataclass(frozen=True, slots=True)
class LatencyStatistics:
    """The distribution of one latency, in milliseconds."""

    mean: float
    median: float
    p99: float
    std: float


@dataclass(frozen=True, slots=True)
class LoadStatistics:
    """The statistics of a load; rates are per second of its whole duration."""

    num_completed: int
    num_failed: int
    duration_seconds: float
    num_input_tokens: int
    num_output_tokens: int
    request_rate: float
    output_rate: float
    token_rate: float
    # Requests per second that met all targets; None without targets.
    goodput: float | None
    # By the names in `LATENCIES`.
    spreads: dict[str, LatencyStatistics]


def summarize(result: LoadResult, targets: Mapping[str, float]) -> LoadStatistics:
    """Summarizes a load; `targets` are in milliseconds, by the names in `TARGETS`."""
    good = [record for record in result.records if not record.error]
    seconds = max(result.duration_seconds, 1e-9)
    num_input = sum(record.num_input_tokens for record in good)
    num_output = sum(record.num_output_tokens for record in good)
    num_met = sum(_meets(record, targets) for record in good)
    values = latencies(good)
    return LoadStatistics(
        num_completed=len(good),
        num_failed=len(result.records) - len(good),
        duration_seconds=seconds,
        num_input_tokens=num_input,
        num_output_tokens=num_output,
        request_rate=len(good) / seconds,
        output_rate=num_output / seconds,
        token_rate=(num_input + num_output) / seconds,
        goodput=num_met / seconds if targets else None,
        spreads={name: _spread(values[name]) for name in LATENCIES},
    )


def latencies(records: Sequence[RequestRecord]) -> dict[str, list[float]]:
    """All latencies of the given requests, in seconds, by the names in `LATENCIES`."""
    tpots = [record.tpot for record in records]
    return {
        "ttft": [record.ttft for record in records],
        "tpot": [tpot for tpot in tpots if tpot is not None],
        "itl": [gap for record in records for gap in record.gaps],
        "e2el": [record.latency for record in records],
    }


def _meets(record: RequestRecord, targets: Mapping[str, float]) -> bool:
    """Whether a request meets all targets; one without a TPOT meets any TPOT target."""
    return all((TARGETS[name](record) or 0) * 1e3 <= limit for name, limit in targets.items())


def _spread(seconds: Sequence[float]) -> LatencyStatistics:
    """The statistics of `seconds`, in milliseconds; all 0 without values."""
    values = np.array(seconds or [0.0]) * 1e3
    return LatencyStatistics(
        float(values.mean()),
        float(np.median(values)),
        float(np.percentile(values, 99)),
        float(values.std()),
    )
