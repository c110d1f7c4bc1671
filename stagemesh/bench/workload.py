"""Owns what a load test asks and when: prompts, lengths and the moments of sending.

Everything is drawn from one seed, so that two runs ask the same.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from runtime.errors import InvalidRequestError

# Its tokens are what random prompts are made of: each is one that the model knows, and text.
POOL_TEXT: Final = (
    "A pipeline passes work from stage to stage, so that every machine has something to do while "
    "the others compute. Numbers such as 7, 42 and 1999, names like Alice or Berlin, and words in "
    "other languages, bonjour, guten Tag, buenos dias, give a tokenizer many different pieces: "
    "def add(left, right): return left + right; SELECT name FROM people WHERE age > 30; "
    "Why is the sky blue? Because short waves of light are scattered more than long ones."
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: a text or token ids, and how many tokens it may generate."""

    prompt: str | tuple[int, ...]
    max_tokens: int


def random_asks(
    pool: Sequence[int], num_prompts: int, input_len: int, output_len: int, seed: int
) -> list[Ask]:
    """Prompts of `input_len` token ids, drawn from `pool`."""
    rows = np.random.default_rng(seed).choice(pool, size=(num_prompts, input_len))
    return [Ask(tuple(map(int, row)), output_len) for row in rows]


def read_asks(path: Path, num_prompts: int, output_len: int) -> list[Ask]:
    """Prompts of a JSONL file, over again where it has too few.

    A line is `{"prompt": TEXT}`, with `"max_tokens"` where it is not `output_len`. Raises
    `InvalidRequestError`, naming the line.
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
    asks = [_read_line(line, f"{path}, line {n}", output_len) for n, line in enumerate(lines, 1)]
    return [asks[index % len(asks)] for index in range(num_prompts)]


def _read_line(line: str, where: str, output_len: int) -> Ask:
    try:
        body = json.loads(line)
    except ValueError as error:
        raise InvalidRequestError(field="--prompts", problem=f"{where}: {error}") from None
    prompt = body.get("prompt") if isinstance(body, dict) else None
    max_tokens = body.get("max_tokens", output_len) if isinstance(body, dict) else None
    if not isinstance(prompt, str) or not prompt or type(max_tokens) is not int or max_tokens < 1:
        problem = f'{where} is not {{"prompt": TEXT}}, with "max_tokens" from 1 up if at all'
        raise InvalidRequestError(field="--prompts", problem=problem)
    return Ask(prompt, max_tokens)


def send_times(num_requests: int, rate: float | None, burstiness: float, seed: int) -> list[float]:
    """Seconds from the start to each request; all 0 without a `rate`.

    Gaps are gamma distributed with shape `burstiness` and mean 1 / `rate`: 1 makes them a Poisson
    process, less makes bursts, more makes them even.
    """
    if rate is None:
        return [0.0] * num_requests
    source = np.random.default_rng(seed)
    gaps = source.gamma(burstiness, 1 / (rate * burstiness), size=num_requests)
    return [float(moment) for moment in np.cumsum(gaps) - gaps[0]]
