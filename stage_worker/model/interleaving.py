"""A step's rows in slices that are computed in turns, so that one hides another's sums over ranks.

Shapes: T tokens of one slice, H hidden size.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stage_worker.model.paged_attention import AttentionMetadata


@dataclass(frozen=True, slots=True)
class SliceMetadata:
    """What the layers need to know of the step's `rows`, as if there were no others.

    `attention` has a plan for each of the layers' windows, None being all of the context.
    """

    rows: slice
    positions_T: Tensor
    attention: Mapping[int | None, AttentionMetadata]


def take_turns(running: Sequence[Generator[None, None, Tensor]]) -> Tensor:
    """Runs each to its next `yield` in turn, and returns what they return, one below the other.

    All yield equally often: they compute the same layers.
    """
    outputs_TH: list[Tensor] = []
    while not outputs_TH:
        for each in running:
            try:
                next(each)
            except StopIteration as end:
                outputs_TH.append(end.value)
    assert len(outputs_TH) == len(running)
    return outputs_TH[0] if len(outputs_TH) == 1 else torch.cat(outputs_TH)
