"""Alternates the computation of a step's slices, so that one hides the other's all-reduces.

Shapes: T tokens of one slice, H hidden size.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stage_worker.model.paged_attention import AttentionMetadata


@dataclass(frozen=True, slots=True)
class SliceMetadata:
    """The layers' inputs for some `rows` of a step.

    `attention` has one entry for each of the layers' windows; None is the whole context.
    """

    rows: slice
    positions_T: Tensor
    attention: Mapping[int | None, AttentionMetadata]


def run_alternately(running: Sequence[Generator[None, None, Tensor]]) -> Tensor:
    """Advances each generator to its next `yield` in turn; returns their results, concatenated.

    All yield equally often, because they compute the same layers.
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
