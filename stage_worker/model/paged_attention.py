"""Attention of one step's tokens to their sequences' keys and values in the KV cache.

Divides the work into calls of scaled_dot_product_attention, as described by metadata that
`attention_metadata.py` builds once per step. Keys and values are written before any are read.

Shapes: T tokens of the step, B sequences, t tokens of one chunk, S tokens of context, N query
heads, K key/value heads, G = N / K query heads per key/value head, D head dimension.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stage_worker.model.kv_cache import Blocks, LayerCache
from stage_worker.model.varlen_attention import VarlenBatch, attend_varlen

_MAX_SCORES = 2**22
"""Score elements per piece of explicit attention; twice as many are in memory at once."""


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """Sequences with one new token each, padded to the longest context.

    `rows_B` are their rows in the step and `blocks` their concatenated block tables. `mask_B11S` is
    added to the scores; without it there is one sequence, with `num_context` tokens.
    """

    rows_B: Tensor
    blocks: Blocks
    num_context: int
    mask_B11S: Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Several new tokens of one sequence; without `mask_tS` they are its first, causal."""

    rows: slice
    blocks: Blocks
    num_context: int
    mask_tS: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The attention of a step in layers of one window.

    New keys and values go to `cache_rows_T`. Attention is one `varlen` call, or one call for each
    of `decodes` and `prefills`.
    """

    cache_rows_T: Tensor
    decodes: tuple[DecodeBatch, ...] = ()
    prefills: tuple[PrefillChunk, ...] = ()
    varlen: VarlenBatch | None = None


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scores x are scaled and, with a soft cap c, mapped to c * tanh(x / c)."""

    scale: float
    soft_cap: float | None


def attend(
    queries_TND: Tensor, cache: LayerCache, metadata: AttentionMetadata, scoring: Scoring
) -> Tensor:
    """The attention output of each token over its context, [T, N, D]."""
    if metadata.varlen is not None:
        return attend_varlen(queries_TND, cache, metadata.varlen, scoring.scale)
    out_TND = torch.empty_like(queries_TND, memory_format=torch.contiguous_format)
    for batch in metadata.decodes:
        queries_BND = queries_TND.index_select(0, batch.rows_B)
        out_TND.index_copy_(0, batch.rows_B, _decode(queries_BND, cache, batch, scoring))
    for chunk in metadata.prefills:
        out_TND[chunk.rows] = _prefill(queries_TND[chunk.rows], cache, chunk, scoring)
    return out_TND


def _decode(queries_BND: Tensor, cache: LayerCache, batch: DecodeBatch, scoring: Scoring) -> Tensor:
    """The G query heads of a key/value head are rows of one product, so it is read once."""
    num_sequences, _, head_dim = queries_BND.shape
    kv_S2KD = cache.read(batch.blocks)
    kv_BS2KD = kv_S2KD.view(num_sequences, -1, *kv_S2KD.shape[1:])
    kv_2BKSD = kv_BS2KD[:, : batch.num_context].permute(2, 0, 3, 1, 4)
    queries_BKGD = queries_BND.view(num_sequences, kv_S2KD.shape[2], -1, head_dim)
    if scoring.soft_cap is not None:
        out_BKGD = _soft_capped(queries_BKGD, kv_2BKSD[0], kv_2BKSD[1], batch.mask_B11S, scoring)
    else:
        out_BKGD = F.scaled_dot_product_attention(
            queries_BKGD,
            kv_2BKSD[0],
            kv_2BKSD[1],
            attn_mask=batch.mask_B11S,
            scale=scoring.scale,
        )
    return out_BKGD.flatten(1, 2)


def _prefill(
    queries_tND: Tensor, cache: LayerCache, chunk: PrefillChunk, scoring: Scoring
) -> Tensor:
    kv_2KSD = cache.read(chunk.blocks)[: chunk.num_context].permute(1, 2, 0, 3)
    if scoring.soft_cap is not None:
        return _soft_capped_prefill(queries_tND, kv_2KSD, chunk.mask_tS, scoring)
    out_1NtD = F.scaled_dot_product_attention(
        queries_tND.transpose(0, 1)[None],
        kv_2KSD[0][None],
        kv_2KSD[1][None],
        attn_mask=chunk.mask_tS,
        is_causal=chunk.mask_tS is None,
        scale=scoring.scale,
        enable_gqa=True,
    )
    return out_1NtD[0].transpose(0, 1)


def _soft_capped_prefill(
    queries_tND: Tensor, kv_2KSD: Tensor, mask_tS: Tensor | None, scoring: Scoring
) -> Tensor:
    """Computes a few rows at a time, to bound the memory of the scores."""
    num_rows, num_heads, _ = queries_tND.shape
    num_kv_heads, num_context = kv_2KSD.shape[1:3]
    if mask_tS is None:
        mask_tS = queries_tND.new_full((num_rows, num_context), -math.inf).triu_(1)
    queries_KGtD = queries_tND.unflatten(1, (num_kv_heads, -1)).permute(1, 2, 0, 3)
    keys_K1SD, values_K1SD = kv_2KSD[0][:, None], kv_2KSD[1][:, None]
    step = max(1, _MAX_SCORES // (num_heads * num_context))
    outs_KGtD = [
        _soft_capped(rows_KGtD, keys_K1SD, values_K1SD, rows_tS, scoring)
        for rows_KGtD, rows_tS in zip(
            queries_KGtD.split(step, dim=2), mask_tS.split(step), strict=True
        )
    ]
    return torch.cat(outs_KGtD, dim=2).permute(2, 0, 1, 3).flatten(1, 2)


def _soft_capped(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scoring: Scoring
) -> Tensor:
    """Explicit attention, because scaled_dot_product_attention has no soft cap.

    The last two dimensions are rows and D; the leading ones are equal or broadcast.
    """
    assert scoring.soft_cap is not None
    scores = (queries @ keys.mT).mul_(scoring.scale / scoring.soft_cap)
    scores = scores.tanh_().mul_(scoring.soft_cap)
    if mask is not None:
        scores += mask
    return scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype) @ values
