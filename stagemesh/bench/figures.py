"""Owns the figures of a load test, by the definitions that vLLM's `bench serve` made common.

TTFT is from sending to the first token. TPOT is one request's time after its first token, divided
by its tokens after the first. ITL is the time between two pieces of an answer, over all requests.
E2EL is from sending to the end. Goodput counts requests that meet every target.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stagemesh.bench.load import LoadResult
from stagemesh.bench.outcome import Outcome

LATENCIES: Final = ("ttft", "tpot", "itl", "e2el")
TARGETS: Final[Mapping[str, Callable[[Outcome], float | None]]] = {
    "ttft": lambda outcome: outcome.ttft,
    "tpot": lambda outcome: outcome.tpot,
    "e2el": lambda outcome: outcome.latency,
}


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of one latency, in milliseconds."""

    mean: float
    median: float
    p99: float
    std: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What a load came to; rates are per second of the whole load."""

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
    spreads: dict[str, Spread]


def summarize(result: LoadResult, targets: Mapping[str, float]) -> Figures:
    """The figures of a load; `targets` are in milliseconds, by the names in `TARGETS`."""
    good = [outcome for outcome in result.outcomes if not outcome.error]
    seconds = max(result.duration_seconds, 1e-9)
    num_input = sum(outcome.num_input_tokens for outcome in good)
    num_output = sum(outcome.num_output_tokens for outcome in good)
    num_met = sum(_meets(outcome, targets) for outcome in good)
    values = latencies(good)
    return Figures(
        num_completed=len(good),
        num_failed=len(result.outcomes) - len(good),
        duration_seconds=seconds,
        num_input_tokens=num_input,
        num_output_tokens=num_output,
        request_rate=len(good) / seconds,
        output_rate=num_output / seconds,
        token_rate=(num_input + num_output) / seconds,
        goodput=num_met / seconds if targets else None,
        spreads={name: _spread(values[name]) for name in LATENCIES},
    )


def latencies(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Every single latency of requests that went well, in seconds, by the names in `LATENCIES`."""
    tpots = [outcome.tpot for outcome in outcomes]
    return {
        "ttft": [outcome.ttft for outcome in outcomes],
        "tpot": [tpot for tpot in tpots if tpot is not None],
        "itl": [gap for outcome in outcomes for gap in outcome.gaps],
        "e2el": [outcome.latency for outcome in outcomes],
    }


def _meets(outcome: Outcome, targets: Mapping[str, float]) -> bool:
    """A request of one token has no TPOT, and so meets any target for it."""
    return all((TARGETS[name](outcome) or 0) * 1e3 <= most for name, most in targets.items())


def _spread(seconds: Sequence[float]) -> Spread:
    """All 0 where there is nothing."""
    values = np.array(seconds or [0.0]) * 1e3
    return Spread(
        float(values.mean()),
        float(np.median(values)),
        float(np.percentile(values, 99)),
        float(values.std()),
    )
