"""Attention of a whole step in one call of torch's variable-length kernel, for CUDA devices.

Selects the form of the kernel that a device supports. The kernel reads the KV cache through block
tables if it can; otherwise (flash attention 2 requires pages of 256 tokens) the sequences' keys and
values are gathered first. `attention_metadata.py` makes the batch.

Shapes: A chunks of the step, T their tokens, S tokens of their contexts one after the other,
N query heads, K key/value heads, D head dimension, P blocks of the longest sequence.
"""

import enum
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.host.logs import get_logger
from stage_worker.model.kv_cache import BlockShape, LayerCache

_PROBE_TOKENS = 40
_PROBE_TOLERANCE = 2e-2

_log = get_logger()


class AttentionKernel(enum.Enum):
    """The implementation of a stage's attention."""

    SDPA = "sdpa"
    """Calls of scaled_dot_product_attention, on any device and in any dtype."""

    GATHERED = "gathered"
    """One call of the variable-length kernel, over gathered keys and values."""

    PAGED = "paged"
    """One call of the variable-length kernel, which reads the cache through block tables."""


@dataclass(frozen=True, slots=True)
class VarlenBatch:
    """All chunks of a step for layers of one window; all tensors except `rows_S` are int32.

    Chunk a has the tokens `starts[a]:starts[a+1]` of the step, which are the last of its
    `contexts_A[a]` tokens. `rows_S` are the contexts' cache rows, and `context_starts` the begin of
    each; without them the kernel reads through `tables_AP`.
    """

    starts: Tensor
    contexts_A: Tensor
    tables_AP: Tensor
    max_tokens: int
    max_context: int
    window: int | None
    rows_S: Tensor | None = None
    context_starts: Tensor | None = None


def attend_varlen(
    queries_TND: Tensor, cache: LayerCache, batch: VarlenBatch, scale: float
) -> Tensor:
    """The attention output of each token over its context, [T, N, D].

    The keys are never split, so that a token's result does not depend on the rest of the batch.
    """
    # The import takes longer than all others of a worker, and only CUDA devices need it.
    from torch.nn.attention import varlen

    paged = batch.rows_S is None
    kv = cache.pages if batch.rows_S is None else cache.rows(batch.rows_S)
    keys, values = kv.unbind(-3)
    out_TND = varlen.varlen_attn(
        queries_TND,
        keys,
        values,
        batch.starts,
        batch.context_starts,
        batch.max_tokens,
        batch.max_context,
        scale=scale,
        window_size=(-1 if batch.window is None else batch.window - 1, 0),
        enable_gqa=queries_TND.shape[1] != keys.shape[-2],
        seqused_k=batch.contexts_A if paged else None,
        block_table=batch.tables_AP if paged else None,
        num_splits=1,
    )
    assert isinstance(out_TND, Tensor)
    return out_TND


def choose_kernel(
    shape: BlockShape, num_heads: int, device: torch.device, *, has_soft_cap: bool
) -> AttentionKernel:
    """The fastest form that computes a small example correctly on this device."""
    # The kernel has no soft cap, and no float32.
    if device.type != "cuda" or has_soft_cap or shape.dtype == torch.float32:
        return AttentionKernel.SDPA
    for kernel in (AttentionKernel.PAGED, AttentionKernel.GATHERED):
        problem = _find_kernel_problem(kernel, shape, num_heads, device)
        if not problem:
            return kernel
        _log.info("attention_kernel_not_used", kernel=kernel.value, cause=problem)
    return AttentionKernel.SDPA


def _find_kernel_problem(
    kernel: AttentionKernel, shape: BlockShape, num_heads: int, device: torch.device
) -> str:
    """Compares one causal chunk with SDPA; returns the problem, empty if there is none."""
    num_blocks = shape.num_blocks(_PROBE_TOKENS)
    pages = torch.randn(
        num_blocks, shape.block_size, 2, shape.num_kv_heads, shape.head_dim, device=device
    ).to(shape.dtype)
    cache = LayerCache(pages, pages)
    queries_TND = torch.randn(_PROBE_TOKENS, num_heads, shape.head_dim, device=device)
    queries_TND = queries_TND.to(shape.dtype)
    scale = shape.head_dim**-0.5
    bounds = torch.tensor([0, _PROBE_TOKENS], dtype=torch.int32, device=device)
    rows_S = torch.arange(_PROBE_TOKENS, device=device)
    batch = VarlenBatch(
        starts=bounds,
        contexts_A=bounds[1:],
        tables_AP=torch.arange(num_blocks, dtype=torch.int32, device=device)[None],
        max_tokens=_PROBE_TOKENS,
        max_context=_PROBE_TOKENS,
        window=None,
        rows_S=None if kernel is AttentionKernel.PAGED else rows_S,
        context_starts=None if kernel is AttentionKernel.PAGED else bounds,
    )
    try:
        actual_TND = attend_varlen(queries_TND, cache, batch, scale)
    except RuntimeError as error:  # torch's error for a missing kernel or form
        return str(error).partition("\n")[0]
    keys, values = cache.rows(rows_S).unbind(-3)
    expected_NTD = F.scaled_dot_product_attention(
        queries_TND.transpose(0, 1),
        keys.transpose(0, 1),
        values.transpose(0, 1),
        is_causal=True,
        scale=scale,
        enable_gqa=True,
    )
    worst = (actual_TND - expected_NTD.transpose(0, 1)).abs().max().item()
    return "" if worst < _PROBE_TOLERANCE else f"differs from SDPA by {worst:.3g}"
