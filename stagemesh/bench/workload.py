"""Generates the prompts of a load test and their send times, reproducibly from a seed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from runtime.errors import InvalidRequestError

# Random prompts are made of its tokens: all are in the model's vocabulary, and are text.
POOL_TEXT: Final = (
    "A pipeline passes work from stage to stage, so that every machine has something to do while "
    "the others compute. Numbers such as 7, 42 and 1999, names like Alice or Berlin, and words in "
    "other languages, bonjour, guten Tag, buenos dias, give a tokenizer many different pieces: "
    "def add(left, right): return left + right; SELECT name FROM people WHERE age > 30; "
    "Why is the sky blue? Because short waves of light are scattered more than long ones."
)


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request: a text or token ids, and the most tokens of its answer."""

    prompt: str | tuple[int, ...]
    max_tokens: int


def random_requests(
    pool: Sequence[int], num_prompts: int, input_len: int, output_len: int, seed: int
) -> list[BenchRequest]:
    """Returns prompts of `input_len` token ids, sampled from `pool`."""
    rows = np.random.default_rng(seed).choice(pool, size=(num_prompts, input_len))
    return [BenchRequest(tuple(map(int, row)), output_len) for row in rows]


def read_requests(path: Path, num_prompts: int, output_len: int) -> list[BenchRequest]:
    """Returns prompts of a JSONL file, repeated if it has fewer than `num_prompts`.

    A line is `{"prompt": TEXT}`, optionally with `"max_tokens"`, which overrides `output_len`.
    Raises `InvalidRequestError` with the line number.
    """
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise InvalidRequestError(field="--prompts", problem=problem) from None
    except UnicodeDecodeError as error:
        raise InvalidRequestError(field="--prompts", problem=f"{path}: {error}") from None
    if not lines:
        raise InvalidRequestError(field="--prompts", problem=f"{path} is empty")
    requests = [
        _read_line(line, f"{path}, line {n}", output_len) for n, line in enumerate(lines, 1)
    ]
    return [requests[index % len(requests)] for index in range(num_prompts)]


def _read_line(line: str, where: str, output_len: int) -> BenchRequest:
    try:
        body = json.loads(line)
    except ValueError as error:
        raise InvalidRequestError(field="--prompts", problem=f"{where}: {error}") from None
    prompt = body.get("prompt") if isinstance(body, dict) else None
    max_tokens = body.get("max_tokens", output_len) if isinstance(body, dict) else None
    if not isinstance(prompt, str) or not prompt or type(max_tokens) is not int or max_tokens < 1:
        problem = f'{where} is not {{"prompt": TEXT}}, optionally with "max_tokens" of at least 1'
        raise InvalidRequestError(field="--prompts", problem=problem)
    return BenchRequest(prompt, max_tokens)


def send_times(num_requests: int, rate: float | None, burstiness: float, seed: int) -> list[float]:
    """Returns the send time of each request, in seconds; all 0 without a `rate`.

    Intervals are gamma distributed with shape `burstiness` and mean 1 / `rate`: 1 is a Poisson
    process, less makes bursts, more makes intervals even.
    """
    if rate is None:
        return [0.0] * num_requests
    generator = np.random.default_rng(seed)
    gaps = generator.gamma(burstiness, 1 / (rate * burstiness), size=num_requests)
    return [float(seconds) for seconds in np.cumsum(gaps) - gaps[0]]
