"""Attention of one step's tokens to what the KV cache holds of their sequences.

Owns how the work is cut into calls of scaled_dot_product_attention; `step_plan.py` makes the plan
once per step, and every layer follows it. Keys and values are written before anything is read.

Shapes: T tokens of the step, B sequences, t tokens of one chunk, S tokens of context, N query
heads, K key/value heads, G = N / K query heads per key/value head, D head dimension.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stage_worker.kv_cache import Blocks, LayerCache


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """Sequences with one new token each, padded to the longest context among them.

    `rows_B` are their rows in the step, `blocks` their tables one after the other, and
    `mask_B11S` is added to the scores; without it a single sequence has `num_context` tokens.
    """

    rows_B: Tensor
    blocks: Blocks
    num_context: int
    mask_B11S: Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Several new tokens of one sequence; without `mask_tS` they are its first, simply causal."""

    rows: slice
    blocks: Blocks
    num_context: int
    mask_tS: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """All of a step's attention: where the new tokens go in the cache, and who reads what."""

    cache_rows_T: Tensor
    decodes: tuple[DecodeBatch, ...]
    prefills: tuple[PrefillChunk, ...]


def attend(queries_TND: Tensor, cache: LayerCache, plan: AttentionPlan) -> Tensor:
    """What each token reads from its own context, [T, N, D]."""
    out_TND = torch.empty_like(queries_TND, memory_format=torch.contiguous_format)
    for batch in plan.decodes:
        queries_BND = queries_TND.index_select(0, batch.rows_B)
        out_TND.index_copy_(0, batch.rows_B, _decode(queries_BND, cache, batch))
    for chunk in plan.prefills:
        out_TND[chunk.rows] = _prefill(queries_TND[chunk.rows], cache, chunk)
    return out_TND


def _decode(queries_BND: Tensor, cache: LayerCache, batch: DecodeBatch) -> Tensor:
    """A key/value head's G query heads stand as rows of one product, so it is read once."""
    num_sequences, _, head_dim = queries_BND.shape
    kv_S2KD = cache.read(batch.blocks)
    kv_BS2KD = kv_S2KD.view(num_sequences, -1, *kv_S2KD.shape[1:])
    kv_2BKSD = kv_BS2KD[:, : batch.num_context].permute(2, 0, 3, 1, 4)
    queries_BKGD = queries_BND.view(num_sequences, kv_S2KD.shape[2], -1, head_dim)
    out_BKGD = F.scaled_dot_product_attention(
        queries_BKGD, kv_2BKSD[0], kv_2BKSD[1], attn_mask=batch.mask_B11S
    )
    return out_BKGD.flatten(1, 2)


def _prefill(queries_tND: Tensor, cache: LayerCache, chunk: PrefillChunk) -> Tensor:
    kv_2KSD = cache.read(chunk.blocks)[: chunk.num_context].permute(1, 2, 0, 3)
    out_1NtD = F.scaled_dot_product_attention(
        queries_tND.transpose(0, 1)[None],
        kv_2KSD[0][None],
        kv_2KSD[1][None],
        attn_mask=chunk.mask_tS,
        is_causal=chunk.mask_tS is None,
        enable_gqa=True,
    )
    return out_1NtD[0].transpose(0, 1)
