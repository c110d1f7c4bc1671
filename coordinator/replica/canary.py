"""Checks that a pipeline computes the model: one prompt, run unsplit and through all stages.

A worker runs the unsplit model once; the log-probabilities are cached by the model's fingerprint.
"""

import asyncio
import hashlib
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from coordinator.engine.step_loop import StepLoop
from coordinator.membership.assignment import Assignment, CanaryReference
from coordinator.stage_client.stage_client import ProgressFn, StageClient
from runtime.checkpoints.model_store import cache_folder
from runtime.errors import CanaryMismatchError
from runtime.host.logs import get_logger
from runtime.protocol.step import SampledToken, SlotSampling
from scheduler import (
    FixedPolicy,
    Scheduler,
    SchedulerLimits,
    SequenceRequest,
)

LoopMaker = Callable[[Scheduler], StepLoop]

_NUM_TOKENS: Final = 16
_NUM_LOGPROBS: Final = 64
# Largest difference of a log-probability, relative to the largest one compared. A wrong split
# differs by far more than 1, rounding by far less.
_TOLERANCES: Final = {"float32": 1e-3, "float16": 0.03, "bfloat16": 0.1}
_FORMAT: Final = 2

_log = get_logger()


async def find_reference(
    client: StageClient,
    assignment: Assignment,
    vocab_size: int,
    max_model_len: int,
    progress: ProgressFn,
) -> CanaryReference:
    """The log-probabilities of the unsplit model, cached or recorded by this worker."""
    prompt = canary_prompt(vocab_size, max_model_len)
    folder = cache_folder() / "canary"
    fingerprint = f"{assignment.weights_fingerprint}-{assignment.max_model_len}"
    if client.worker.identity.device_kind == "paced":  # it does not compute this model
        fingerprint += "-paced"
    reference = await asyncio.to_thread(read_reference, folder, fingerprint, prompt)
    if reference is None:
        num_logprobs = min(_NUM_LOGPROBS, vocab_size)
        reference = await client.record_canary(assignment, prompt, num_logprobs, progress)
        try:
            await asyncio.to_thread(write_reference, folder, fingerprint, reference)
        except OSError as error:  # without the cache it is only recorded again
            _log.warning("canary_not_kept", folder=str(folder), problem=str(error))
    return reference


async def run_canary(
    make_loop: LoopMaker, limits: SchedulerLimits, reference: CanaryReference, dtype: str
) -> None:
    """Runs the prompt through all stages; raises `CanaryMismatchError` for a wrong result.

    It has a scheduler of its own, so that it and the requests do not delay each other. All its
    slots and blocks are released at the end.
    """
    scheduler = Scheduler(limits, FixedPolicy(limits.max_step_tokens))
    request = SequenceRequest(
        sequence_id=0,
        prompt_ids=reference.token_ids,
        sampling=SlotSampling(num_logprobs=len(reference.top_ids)),
        max_tokens=1,
        stop_ids=frozenset(),
        arrival=0.0,
    )
    scheduler.add(request)
    tokens = await make_loop(scheduler).run_until_idle()
    check_canary(reference, tokens[0].token, dtype)


def canary_prompt(vocab_size: int, max_model_len: int) -> tuple[int, ...]:
    """Token ids derived from the size of the vocabulary; at most `max_model_len - 1`."""
    num_tokens = min(_NUM_TOKENS, max_model_len - 1)
    return tuple((7 + 13 * i + 37 * i * i) % vocab_size for i in range(num_tokens))


def check_canary(reference: CanaryReference, sampled: SampledToken, dtype: str) -> None:
    """Raises `CanaryMismatchError` if the log-probabilities differ from the reference.

    Both sides list only their most likely tokens. A token that is missing on one side is there at
    most as likely as the last one listed. Only the excess over that bound counts as a difference,
    so near ties at the end of the lists do not matter.
    """
    expected = dict(zip(reference.top_ids, reference.top_logprobs, strict=True))
    actual = dict(zip(sampled.top_ids, sampled.top_logprobs, strict=True))
    tolerance = _TOLERANCES[dtype] * max(abs(value) for value in reference.top_logprobs)
    worst = max(_excess(expected, actual), _excess(actual, expected))
    if not worst <= tolerance:  # a reference that holds NaN makes both of them NaN
        raise CanaryMismatchError(worst=worst, tolerance=tolerance)


def _excess(ours: dict[int, float], theirs: dict[int, float]) -> float:
    """The largest certain difference of `theirs` from `ours`; infinite if it is unknown."""
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
    """The reference in `folder`; None if it is absent, damaged or for another prompt."""
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
    """Writes `reference` to `folder` atomically."""
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
    return hashlib.sha256(text.encode()).hexdigest()


def _path(folder: Path, fingerprint: str) -> Path:
    return folder / f"canary-{_FORMAT}-{fingerprint}"
