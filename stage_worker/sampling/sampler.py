"""Samples one token per row of logits, independently of the rest of the batch.

Tokens are sampled from the processed logits (`logits_processors.py`); the reported
log-probabilities are the model's own.

Each (seed, choice, position) has one uniform number from a counter-based generator, which is mapped
through the inverse of the float64 cumulative distribution in vocabulary order. Filters apply in the
order temperature, top_k, top_p, min_p. Generator: Philox4x64-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", 2011).

Shapes: B rows, V vocabulary, C candidates left after the filters so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runtime.errors import GrammarError, NonFiniteLogitsError, StagemeshError
from runtime.protocol.step import SampledToken, SlotSampling
from stage_worker.sampling.grammar import GrammarMatcher
from stage_worker.sampling.logits_processors import changes_logits, process_logits


@dataclass(frozen=True, slots=True)
class SamplingInput:
    """One row's slot and parameters; `position` is that of the sampled token.

    `token_ids` is the sequence so far, required if `sampling.needs_tokens`; `matcher` follows
    `sampling.grammar` if there is one.
    """

    slot: int
    sampling: SlotSampling
    position: int
    token_ids: Sequence[int] = ()
    matcher: GrammarMatcher | None = None


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Token ids in vocabulary order and their float64 weights, of which the largest is 1."""

    ids_C: Tensor
    weights_C: Tensor

    def keep(self, kept_C: Tensor) -> "_Candidates":
        return _Candidates(self.ids_C[kept_C], self.weights_C[kept_C])


def sample(logits_BV: Tensor, requests: Sequence[SamplingInput]) -> tuple[SampledToken, ...]:
    """One token per row; raises `NonFiniteLogitsError` for NaN or infinite logits."""
    logits_BV = logits_BV.float().cpu()
    is_finite = logits_BV.sum(dim=-1).isfinite().tolist()
    for request, finite in zip(requests, is_finite, strict=True):
        if not finite:
            raise NonFiniteLogitsError(slot=request.slot)
    normalizers = logits_BV.logsumexp(dim=-1).tolist()
    likeliest = logits_BV.argmax(dim=-1).tolist()
    return tuple(
        _sample_row(*row) for row in zip(logits_BV, normalizers, likeliest, requests, strict=True)
    )


def _sample_row(
    logits_V: Tensor, normalizer: float, likeliest: int, request: SamplingInput
) -> SampledToken:
    sampling = request.sampling
    try:
        processed_V = _process(logits_V, request)
    except StagemeshError as error:
        # The coordinator turns it into a `GrammarError` again.
        problem = error.problem if isinstance(error, GrammarError) else str(error)
        return SampledToken(request.slot, token_id=0, problem=problem)
    if processed_V is not logits_V:
        likeliest = int(processed_V.argmax())
    token_id = likeliest if sampling.temperature == 0 else _draw(processed_V, request)
    if request.matcher is not None:
        request.matcher.follow((token_id,))
    num_top = min(sampling.num_logprobs, logits_V.shape[0])
    top_logits, top_ids = logits_V.topk(num_top)
    return SampledToken(
        slot=request.slot,
        token_id=token_id,
        logprob=float(logits_V[token_id]) - normalizer,
        top_ids=tuple(top_ids.tolist()),
        top_logprobs=tuple((top_logits - normalizer).tolist()),
    )


def _process(logits_V: Tensor, request: SamplingInput) -> Tensor:
    """The processed and masked logits; raises what `GrammarMatcher.forbidden` raises."""
    sampling = request.sampling
    if changes_logits(sampling, request.position):
        logits_V = process_logits(logits_V, sampling, request.position, request.token_ids)
    if request.matcher is not None:
        forbidden_V = request.matcher.forbidden(request.token_ids[sampling.num_prompt_tokens :])
        logits_V = logits_V.masked_fill(forbidden_V, -torch.inf)
    return logits_V


def uniform(seed: int, choice: int, position: int) -> float:
    """The uniform number in [0, 1) of one token."""
    key = np.array([seed, choice], dtype=np.uint64)
    bits = np.random.Philox(key=key, counter=position)
    return float(np.random.Generator(bits).random())


def _draw(logits_V: Tensor, request: SamplingInput) -> int:
    sampling = request.sampling
    scaled_V = logits_V.double() / sampling.temperature
    candidates = _Candidates(torch.arange(scaled_V.shape[0]), (scaled_V - scaled_V.max()).exp())
    if 0 < sampling.top_k < scaled_V.shape[0]:
        candidates = _keep_top_k(candidates, sampling.top_k)
    if sampling.top_p < 1:
        candidates = _keep_top_p(candidates, sampling.top_p)
    if sampling.min_p > 0:
        candidates = candidates.keep(candidates.weights_C >= sampling.min_p)
    cumulative_C = candidates.weights_C.cumsum(0)
    target = uniform(sampling.seed, sampling.choice, request.position) * cumulative_C[-1]
    index = int(torch.searchsorted(cumulative_C, target, right=True))
    return int(candidates.ids_C[min(index, len(cumulative_C) - 1)])


def _keep_top_k(candidates: _Candidates, top_k: int) -> _Candidates:
    """The `top_k` of largest weight; ties at the boundary go to the lowest ids."""
    boundary = candidates.weights_C.topk(top_k).values[-1]
    kept_C = candidates.weights_C > boundary
    at_boundary = (candidates.weights_C == boundary).nonzero().squeeze(1)
    kept_C[at_boundary[: top_k - int(kept_C.sum())]] = True
    return candidates.keep(kept_C)


def _keep_top_p(candidates: _Candidates, top_p: float) -> _Candidates:
    """The smallest set of largest weights that sums to at least `top_p` of the total.

    All candidates below a share of (1 - top_p) / C sum to less than 1 - top_p, so they are never in
    the set and are not sorted.
    """
    total = candidates.weights_C.sum()
    floor = (1 - top_p) * total / len(candidates.weights_C)
    candidates = candidates.keep(candidates.weights_C >= floor)
    sorted_C, order_C = candidates.weights_C.sort(descending=True, stable=True)
    num_kept = int((sorted_C.cumsum(0) - sorted_C < top_p * total).sum())
    kept_C = order_C[: max(1, num_kept)].sort().values
    return candidates.keep(kept_C)
