"""Decides which part of an activation each rank sends to which rank of the next stage.

Rank t of a stage owns one interval of the hidden dimension
(`runtime/model_config/tensor_parallel.py`). Ranks of neighbouring stages have a link if their
intervals overlap. If both stages have the same number of ranks, rank t sends to rank t alone, and
each link carries 1/tp of every activation.

Shapes: T tokens, H this rank's interval of the hidden dimension, h a part of it.
"""

from collections.abc import Sequence

from torch import Tensor

from runtime.model_config.tensor_parallel import share

Interval = tuple[int, int]
"""Begin and end in the model's hidden dimension."""


def hidden_interval(hidden_size: int, rank: int, num_ranks: int) -> Interval:
    """The interval that `rank` of a stage receives and sends."""
    own = share(hidden_size, rank, num_ranks)
    return own.start, own.stop


def overlapping_ranks(own: Interval, hidden_size: int, num_ranks: int) -> dict[int, Interval]:
    """The ranks of a neighbouring stage whose intervals overlap `own`, with the overlaps."""
    parts = {}
    for rank in range(num_ranks):
        begin, end = hidden_interval(hidden_size, rank, num_ranks)
        part = max(begin, own[0]), min(end, own[1])
        if part[0] < part[1]:
            parts[rank] = part
    return parts


def split_hidden(hidden_TH: Tensor | None, parts: Sequence[Interval]) -> tuple[Tensor | None, ...]:
    """Contiguous copies of the `parts`, [T, h] each; None each if the step has no activation.

    `parts` together are the rank's interval, in order.
    """
    if hidden_TH is None:
        return (None,) * len(parts)
    origin = parts[0][0] if parts else 0
    return tuple(hidden_TH[:, begin - origin : end - origin].contiguous() for begin, end in parts)
