"""Which part of an activation goes from which rank to which, and the cutting of it.

Rank t of a stage owns one interval of the hidden dimension
(`runtime/model_config/tensor_parallel.py`).
Two ranks of neighbouring stages are joined where their intervals meet: with as many ranks on both
sides, rank t is joined to rank t alone, and each of these lanes carries 1/tp of every activation.

Shapes: T tokens, H this rank's interval of the hidden dimension, h a part of it.
"""

from collections.abc import Sequence

from torch import Tensor

from runtime.model_config.tensor_parallel import share

Interval = tuple[int, int]
"""Begin and end in the whole model's hidden dimension."""


def hidden_interval(hidden_size: int, rank: int, num_ranks: int) -> Interval:
    """What `rank` of a stage takes and gives."""
    own = share(hidden_size, rank, num_ranks)
    return own.start, own.stop


def overlapping_ranks(own: Interval, hidden_size: int, num_ranks: int) -> dict[int, Interval]:
    """The ranks of a neighbouring stage that `own` is shared with, each with what both have."""
    parts = {}
    for rank in range(num_ranks):
        begin, end = hidden_interval(hidden_size, rank, num_ranks)
        part = max(begin, own[0]), min(end, own[1])
        if part[0] < part[1]:
            parts[rank] = part
    return parts


def split_hidden(hidden_TH: Tensor | None, parts: Sequence[Interval]) -> tuple[Tensor | None, ...]:
    """Each part in one piece, [T, h]; None where the step carries none.

    `parts` make the rank's interval up, in order.
    """
    if hidden_TH is None:
        return (None,) * len(parts)
    origin = parts[0][0] if parts else 0
    return tuple(hidden_TH[:, begin - origin : end - origin].contiguous() for begin, end in parts)
