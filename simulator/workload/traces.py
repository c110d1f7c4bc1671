"""Reads recorded traces and makes synthetic ones: arrivals, prompt and answer lengths.

Formats: the Azure LLM inference trace (CSV) and Mooncake's (JSON lines, with prefix hashes).
"""

import csv
import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from runtime.errors import InvalidRequestError

MOONCAKE_HASH_TOKENS = 512


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request; equal `prefix_hashes` denote equal runs of 512 prompt tokens."""

    arrival: float
    num_prompt_tokens: int
    num_output_tokens: int
    prefix_hashes: tuple[int, ...] = ()

    def prompt_ids(self, unique: int) -> tuple[int, ...]:
        """Returns tokens that are equal where hashes are; `unique` makes the rest distinct."""
        ids: list[int] = []
        for prefix_hash in self.prefix_hashes:
            ids += [prefix_hash] * MOONCAKE_HASH_TOKENS
        ids += [-1 - unique] * (self.num_prompt_tokens - len(ids))
        return tuple(ids[: self.num_prompt_tokens])


Trace = tuple[TraceRequest, ...]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths in tokens: median and standard deviation of the logarithm, bounded."""

    median: float
    sigma: float
    maximum: int

    def draw(self, source: random.Random) -> int:
        """Draws one length of at least 1."""
        return max(
            1, min(self.maximum, round(source.lognormvariate(math.log(self.median), self.sigma)))
        )


@dataclass(frozen=True, slots=True)
class LoadShape:
    """The distributions of prompts, answers and arrivals.

    `burstiness` is the squared coefficient of variation of the gamma-distributed times between
    arrivals; 1 is a Poisson process, more gives bursts.
    """

    prompt: Lengths
    output: Lengths
    burstiness: float = 1.0


def read_trace(path: Path, max_requests: int | None = None) -> Trace:
    """Reads a file's requests; the first arrives at 0. Raises `InvalidRequestError`."""
    reader = _read_mooncake if path.suffix == ".jsonl" else _read_azure
    try:
        requests = sorted(reader(path), key=lambda request: request.arrival)
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise InvalidRequestError(field="--trace", problem=problem) from None
    except (ValueError, KeyError, TypeError) as error:
        problem = f"{path} is not {_FORMATS[reader]} ({type(error).__name__}: {error})"
        raise InvalidRequestError(field="--trace", problem=problem) from None
    if not requests:
        problem = f"{path} has no requests; expected {_FORMATS[reader]}"
        raise InvalidRequestError(field="--trace", problem=problem)
    first = requests[0].arrival
    return tuple(
        replace(request, arrival=request.arrival - first) for request in requests[:max_requests]
    )


def synthetic(shape: LoadShape, num_requests: int, rate: float, seed: int) -> Trace:
    """Makes `num_requests` requests at a mean of `rate` per second."""
    source = random.Random(seed)
    arrival = 0.0
    requests = []
    for _ in range(num_requests):
        requests.append(TraceRequest(arrival, shape.prompt.draw(source), shape.output.draw(source)))
        arrival += source.gammavariate(1 / shape.burstiness, shape.burstiness) / rate
    return tuple(requests)


def at_rate(trace: Sequence[TraceRequest], rate: float) -> Trace:
    """Scales the arrivals to a mean of `rate` requests per second.

    Requests that all arrive at the same time are returned unchanged.
    """
    now = mean_rate(trace)
    factor = 1.0 if math.isinf(now) else now / rate
    return tuple(replace(request, arrival=request.arrival * factor) for request in trace)


def mean_rate(trace: Sequence[TraceRequest]) -> float:
    """Requests per second between the first and the last arrival."""
    span = trace[-1].arrival - trace[0].arrival
    return (len(trace) - 1) / span if span > 0 else math.inf


def fit(trace: Iterable[TraceRequest], max_model_len: int) -> Trace:
    """Truncates requests to `max_model_len`: answers first, then prompts that leave no token."""
    requests = []
    for request in trace:
        num_prompt = min(request.num_prompt_tokens, max_model_len - 1)
        num_output = max(1, min(request.num_output_tokens, max_model_len - num_prompt))
        requests.append(
            replace(request, num_prompt_tokens=num_prompt, num_output_tokens=num_output)
        )
    return tuple(requests)


def _read_azure(path: Path) -> Iterator[TraceRequest]:
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            # Seven digits of a second: one more than Python reads.
            stamp = datetime.fromisoformat(row["TIMESTAMP"][:26])
            num_prompt, num_output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            yield TraceRequest(stamp.timestamp(), max(1, num_prompt), max(1, num_output))


def _read_mooncake(path: Path) -> Iterator[TraceRequest]:
    with path.open() as lines:
        for line in lines:
            row = json.loads(line)
            yield TraceRequest(
                arrival=row["timestamp"] / 1000,
                num_prompt_tokens=max(1, row["input_length"]),
                num_output_tokens=max(1, row["output_length"]),
                prefix_hashes=tuple(row["hash_ids"]),
            )


_FORMATS = {
    _read_azure: (
        "the Azure LLM inference trace, CSV with TIMESTAMP, ContextTokens and GeneratedTokens "
        "(a file that ends in .jsonl is read as Mooncake's)"
    ),
    _read_mooncake: (
        "Mooncake's trace, JSON lines with timestamp, input_length, output_length and hash_ids"
    ),
}
