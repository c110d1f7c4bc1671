"""Computes the log-probabilities of a prompt's tokens from the rows of its chunks.

Every row of a chunk predicts the token after it. The step carries the token after the chunk's last
row, so no rank keeps rows between steps.

Shapes: B rows to score, V vocabulary, K most likely tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.errors import FrameError, NonFiniteLogitsError
from runtime.protocol.step import ScoredToken, SequenceChunk, SlotSampling


@dataclass(frozen=True, slots=True)
class PromptTarget:
    """The prompt token that one row of a step predicts."""

    row: int
    slot: int
    position: int
    token_id: int
    num_logprobs: int


def chunk_targets(
    chunk: SequenceChunk, first_row: int, sampling: SlotSampling
) -> Iterator[PromptTarget]:
    """The prompt tokens that the chunk's rows predict, if the prompt is scored.

    Raises `FrameError` if the step lacks the token after the chunk.
    """
    if sampling.num_prompt_logprobs is None:
        return
    begin = chunk.position + 1
    end = min(begin + len(chunk.token_ids), sampling.num_prompt_tokens)
    for position in range(begin, end):
        offset = position - chunk.position
        is_inside = offset < len(chunk.token_ids)
        token_id = chunk.token_ids[offset] if is_inside else chunk.next_token_id
        if token_id is None:
            what = f"token {position} of the scored prompt in slot {chunk.slot}"
            raise FrameError(what=what, expected="the token after the chunk", actual="none")
        row = first_row + offset - 1
        yield PromptTarget(row, chunk.slot, position, token_id, sampling.num_prompt_logprobs)


def score(logits_BV: Tensor, targets: Sequence[PromptTarget]) -> list[ScoredToken]:
    """One scored token per row; raises `NonFiniteLogitsError` for NaN or infinite logits."""
    logits_BV = logits_BV.float().cpu()
    normalizers_B = logits_BV.logsumexp(dim=-1)
    ids_B = torch.tensor([target.token_id for target in targets])
    logprobs_B = logits_BV.gather(1, ids_B[:, None])[:, 0] - normalizers_B
    for target, is_finite in zip(targets, logits_BV.sum(dim=-1).isfinite().tolist(), strict=True):
        if not is_finite:
            raise NonFiniteLogitsError(slot=target.slot)
    num_top = min(max(target.num_logprobs for target in targets), logits_BV.shape[1])
    top_BK = logits_BV.topk(num_top)
    logprobs_BK = top_BK.values - normalizers_B[:, None]
    rows = zip(
        targets, logprobs_B.tolist(), top_BK.indices.tolist(), logprobs_BK.tolist(), strict=True
    )
    return [
        ScoredToken(
            slot=target.slot,
            position=target.position,
            token_id=target.token_id,
            logprob=logprob,
            top_ids=tuple(top_ids[: target.num_logprobs]),
            top_logprobs=tuple(top_logprobs[: target.num_logprobs]),
        )
        for target, logprob, top_ids, top_logprobs in rows
    ]
