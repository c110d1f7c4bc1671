"""Applies a request's penalties, biases and suppressed tokens to one row of logits.

Pure functions of the row, the sequence's tokens and the position, so that a token that is sampled
again in another batch, split or epoch is sampled from the same logits.

Shapes: V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.protocol.step import SlotSampling


def changes_logits(sampling: SlotSampling, position: int) -> bool:
    """Whether `process_logits` changes the logits of the token at `position`."""
    is_suppressed = position < sampling.suppressed_until
    return sampling.has_penalties or bool(sampling.logit_bias) or is_suppressed


def process_logits(
    logits_V: Tensor, sampling: SlotSampling, position: int, token_ids: Sequence[int]
) -> Tensor:
    """A processed copy, [V]; `token_ids` is the sequence so far if `sampling.has_penalties`.

    The repetition penalty is that of CTRL (Keskar et al., 2019) and includes the prompt. Presence
    and frequency penalties are those of OpenAI's API and count generated tokens only.
    """
    logits_V = logits_V.clone()
    if sampling.has_penalties:
        _penalize(logits_V, sampling, torch.tensor(token_ids))
    if sampling.logit_bias:
        biased_ids, biases = zip(*sampling.logit_bias, strict=True)
        logits_V[list(biased_ids)] += torch.tensor(biases)
    if position < sampling.suppressed_until:
        logits_V[list(sampling.suppressed_ids)] = -torch.inf
    return logits_V


def _penalize(logits_V: Tensor, sampling: SlotSampling, token_ids_T: Tensor) -> None:
    """Penalizes `logits_V` in place; T is the sequence's length."""
    if sampling.repetition_penalty != 1:
        seen = token_ids_T.unique()
        penalty = sampling.repetition_penalty
        logits_V[seen] = torch.where(
            logits_V[seen] > 0, logits_V[seen] / penalty, logits_V[seen] * penalty
        )
    generated, counts = token_ids_T[sampling.num_prompt_tokens :].unique(return_counts=True)
    logits_V[generated] -= sampling.frequency_penalty * counts + sampling.presence_penalty
