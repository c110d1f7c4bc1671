"""A CPU implementation of `torch.nn.attention.varlen.varlen_attn`, after its documentation."""

from typing import Any

import torch
from torch import Tensor


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor | None,
    block_table: Tensor | None,
    num_splits: int | None,
) -> Tensor:
    """Computes each query's attention separately, over the keys that it may attend to."""
    assert num_splits == 1
    assert window_size[1] == 0
    assert all(t is None or t.dtype == torch.int32 for t in (cu_seq_q, cu_seq_k, seqused_k))
    out = torch.empty_like(query)
    num_groups = query.shape[1] // key.shape[-2]
    assert enable_gqa == (num_groups > 1)
    for index in range(len(cu_seq_q) - 1):
        rows = slice(int(cu_seq_q[index]), int(cu_seq_q[index + 1]))
        keys, values = (_held(x, index, cu_seq_k, seqused_k, block_table) for x in (key, value))
        num_queries, num_keys = rows.stop - rows.start, len(keys)
        assert num_queries <= max_q
        assert num_keys <= max_k
        positions = torch.arange(num_keys - num_queries, num_keys)[:, None]
        places = torch.arange(num_keys)[None]
        is_seen = places <= positions
        if window_size[0] >= 0:
            is_seen &= places >= positions - window_size[0]
        scores = torch.einsum("qhd,khd->hqk", query[rows], keys.repeat_interleave(num_groups, 1))
        weights = (scores * scale).masked_fill(~is_seen, -torch.inf).softmax(-1)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(num_groups, 1))
    return out


def _held(
    pages: Tensor,
    index: int,
    starts: Tensor | None,
    lengths: Tensor | None,
    tables: Tensor | None,
) -> Tensor:
    if tables is None:
        assert starts is not None
        return pages[int(starts[index]) : int(starts[index + 1])]
    assert lengths is not None
    assert tables.dtype == torch.int32
    return pages[tables[index].long()].flatten(0, 1)[: int(lengths[index])]


class EagerGraph:
    """Replaces a CUDA graph: a replay computes again, into the same memory."""

    def __init__(self, forward: Any, bucket: int) -> None:
        self._forward = forward
        self._bucket = bucket
        self.output: Tensor = forward(bucket)
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1
        self.output.copy_(self._forward(self._bucket))
