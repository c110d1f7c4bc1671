"""Owns the proof that a route computes the model: one prompt, asked in one piece and in stages.

The model in one piece is computed once by a worker and kept beside the model by its fingerprint.
Comparing is pure; running the prompt is the replica's.
"""

import hashlib
import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import CanaryMismatchError
from runtime.protocol.step import SampledToken

NUM_TOKENS = 16
NUM_LOGPROBS = 64
# Largest difference of a log-probability, relative to the largest one compared. A wrong split is
# off by far more than one, rounding by far less.
_TOLERANCES = {"float32": 1e-3, "float16": 0.03, "bfloat16": 0.1}
_FORMAT = 2


@dataclass(frozen=True, slots=True)
class CanaryReference:
    """The most likely tokens after `token_ids`, most likely first, with log-probabilities."""

    token_ids: tuple[int, ...]
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


def canary_prompt(vocab_size: int, max_model_len: int) -> tuple[int, ...]:
    """Token ids that follow from the vocabulary's size alone; fewer where fewer fit."""
    num_tokens = min(NUM_TOKENS, max_model_len - 1)
    return tuple((7 + 13 * i + 37 * i * i) % vocab_size for i in range(num_tokens))


def check_canary(reference: CanaryReference, answer: SampledToken, dtype: str) -> None:
    """Raises `CanaryMismatchError` if the route's log-probabilities are not the reference's.

    Both sides list their most likely tokens only. A token that one side lists and the other does
    not is, on that other side, at most as likely as the last one listed; only what exceeds that
    bound counts as a difference, so near ties at the end of the lists do no harm.
    """
    expected = dict(zip(reference.top_ids, reference.top_logprobs, strict=True))
    actual = dict(zip(answer.top_ids, answer.top_logprobs, strict=True))
    tolerance = _TOLERANCES[dtype] * max(abs(value) for value in reference.top_logprobs)
    worst = max(_excess(expected, actual), _excess(actual, expected))
    if not worst <= tolerance:  # a reference that holds NaN makes both of them NaN
        raise CanaryMismatchError(worst=worst, tolerance=tolerance)


def _excess(ours: dict[int, float], theirs: dict[int, float]) -> float:
    """How far `theirs` certainly is from `ours`, at worst; infinite if that cannot be said."""
    if not ours or not theirs or any(map(math.isnan, theirs.values())):
        return math.inf
    least = min(theirs.values())
    return max(
        abs(value - theirs[token]) if token in theirs else value - least
        for token, value in ours.items()
    )


def read_reference(
    folder: Path, fingerprint: str, prompt: tuple[int, ...]
) -> CanaryReference | None:
    """The reference kept in `folder`, unless it is absent, damaged or for another prompt."""
    try:
        digest, text = _path(folder, fingerprint).read_text().split("\n", 1)
    except (OSError, ValueError):
        return None
    if digest != _digest(text):
        return None
    fields = json.loads(text)
    reference = CanaryReference(
        tuple(fields["token_ids"]), tuple(fields["top_ids"]), tuple(fields["top_logprobs"])
    )
    return reference if reference.token_ids == prompt else None


def write_reference(folder: Path, fingerprint: str, reference: CanaryReference) -> None:
    """Keeps `reference` in `folder`; another process sees all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "token_ids": reference.token_ids,
        "top_ids": reference.top_ids,
        "top_logprobs": reference.top_logprobs,
    }
    text = json.dumps(fields)
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as file:
        part = Path(file.name)
        try:
            file.write(f"{_digest(text)}\n{text}")
            file.flush()
            part.replace(_path(folder, fingerprint))
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _digest(text: str) -> str:
    """A file that was damaged differs in it, wherever the damage is."""
    return hashlib.sha256(text.encode()).hexdigest()


def _path(folder: Path, fingerprint: str) -> Path:
    return folder / f"canary-{_FORMAT}-{fingerprint}"
