"""Owns the way from what a client asks for to what the sampling rank is told about one slot."""

from runtime.protocol.inference_types import GenerationRequest
from runtime.protocol.step import SlotSampling


def slot_sampling(
    request: GenerationRequest,
    seed: int,
    choice: int,
    stop_ids: frozenset[int],
    num_prompt_tokens: int,
) -> SlotSampling:
    """How one choice's tokens are drawn.

    Everything is said in positions, so that a sequence that is computed again draws the same.
    """
    sampling, min_tokens = request.sampling, request.min_tokens
    return SlotSampling(
        temperature=sampling.temperature,
        # As the wire carries it; a vocabulary is smaller, so this is all of it.
        top_k=min(sampling.top_k, 2**32 - 1),
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=seed,
        choice=choice,
        num_logprobs=sampling.num_logprobs,
        suppressed_ids=tuple(sorted(stop_ids)) if min_tokens else (),
        suppressed_until=num_prompt_tokens + min_tokens if min_tokens else 0,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        num_prompt_tokens=num_prompt_tokens,
        logit_bias=sampling.logit_bias,
        num_prompt_logprobs=sampling.num_prompt_logprobs,
    )
