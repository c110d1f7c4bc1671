"""Owns both sides of the canary: the kept or newly recorded reference, and the route's answer."""

import asyncio
from collections.abc import Callable

from coordinator.engine.step_loop import StepListener, StepLoop
from coordinator.membership.assignment import Assignment
from coordinator.replica.canary import (
    NUM_LOGPROBS,
    CanaryReference,
    canary_prompt,
    check_canary,
    read_reference,
    write_reference,
)
from coordinator.stage_client.stage_client import ProgressFn, StageClient
from runtime.checkpoints.model_store import cache_folder
from runtime.host.logs import get_logger
from runtime.protocol.step import SampledToken, SlotSampling, Step
from scheduler import (
    FixedPolicy,
    Scheduler,
    SchedulerLimits,
    ScoreEvent,
    SequenceRequest,
    TokenEvent,
)

LoopMaker = Callable[[Scheduler, StepListener], StepLoop]

_log = get_logger()


async def find_reference(
    client: StageClient,
    assignment: Assignment,
    vocab_size: int,
    max_model_len: int,
    progress: ProgressFn,
) -> CanaryReference:
    """What the model in one piece says: from the cache, else recorded by this worker and kept."""
    prompt = canary_prompt(vocab_size, max_model_len)
    folder = cache_folder() / "canary"
    fingerprint = f"{assignment.weights_fingerprint}-{assignment.max_model_len}"
    if client.worker.identity.device_kind == "paced":  # it does not compute this model
        fingerprint += "-paced"
    reference = await asyncio.to_thread(read_reference, folder, fingerprint, prompt)
    if reference is None:
        num_logprobs = min(NUM_LOGPROBS, vocab_size)
        reference = await client.record_canary(assignment, prompt, num_logprobs, progress)
        try:
            await asyncio.to_thread(write_reference, folder, fingerprint, reference)
        except OSError as error:  # a cache that cannot be written costs time, nothing else
            _log.warning("canary_not_kept", folder=str(folder), problem=str(error))
    return reference


async def check_route(
    make_loop: LoopMaker, limits: SchedulerLimits, reference: CanaryReference, dtype: str
) -> None:
    """Runs the canary through every stage; raises `CanaryMismatchError` if it comes out wrong.

    It has a scheduler of its own, so that no request is in its way and it is in no request's way;
    when it is done, every slot and block is released.
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
    answer = _Answer()
    await make_loop(scheduler, answer).run_until_idle()
    check_canary(reference, answer.tokens[0], dtype)


class _Answer:
    """Keeps the one token that the canary draws."""

    def __init__(self) -> None:
        self.tokens: list[SampledToken] = []

    def on_step(self, step: Step, now: float) -> None:
        """Nothing to note."""

    def on_scored(self, event: ScoreEvent) -> None:
        """Its prompt is not scored."""

    def on_token(self, event: TokenEvent, now: float) -> None:
        """The answer, with its log-probabilities."""
        self.tokens.append(event.token)
