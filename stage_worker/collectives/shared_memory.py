"""A group whose ranks exchange everything through shared memory: for CPUs of one host.

On a CPU, gloo's small all-reduce costs milliseconds, more than what a small model computes between
two of them. Large tensors go in pieces through a fixed buffer.

Shapes: T rows, W one rank's columns, A the columns of all ranks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.errors import StagemeshError
from runtime.step import Step
from stage_worker.collectives.agreement import agree
from stage_worker.collectives.shared_block import PIECE_BYTES, SharedBlock


class SharedMemoryGroup:
    """See `RankGroup`. Sums are made in the order of ranks, on every rank by itself."""

    def __init__(self, block: SharedBlock) -> None:
        self.rank = block.rank
        self.size = block.size
        self._block = block

    def agree(self, step: Step, refusal: StagemeshError | None) -> None:
        """Through the same memory."""
        agree(self._block, step, refusal)

    def all_reduce_(self, x: Tensor) -> Tensor:
        """Every rank reads every piece of all others."""
        flat = x.view(-1)
        step = PIECE_BYTES // x.element_size()
        for begin in range(0, flat.numel(), step):
            piece = flat[begin : begin + step]
            parts = self._block.exchange(piece, "an all-reduce")
            first, second, *others = (part[: piece.numel()] for part in parts)
            torch.add(first, second, out=piece)
            for other in others:
                piece += other
        return x

    def all_gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor:
        """Every rank reads every piece of all others."""
        parts = [x_TW.new_empty(len(x_TW), width) for width in widths]
        self._exchange(x_TW, widths, parts, "an all-gather")
        return torch.cat(parts, dim=1)

    def gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor | None:
        """Rank 0 reads, the others only wait until it has."""
        if self.rank:
            self._exchange(x_TW, widths, (), "a gather")
            return None
        parts = [x_TW.new_empty(len(x_TW), width) for width in widths]
        self._exchange(x_TW, widths, parts, "a gather")
        return torch.cat(parts, dim=1)

    def abort(self, end: StagemeshError) -> None:
        """Waiting ranks look at it between two naps of a millisecond at most."""
        self._block.end(end)

    def close(self) -> None:
        """The block's file goes; its memory with the last rank."""
        self._block.close()

    def _exchange(
        self, x_TW: Tensor, widths: Sequence[int], parts: Sequence[Tensor], what: str
    ) -> None:
        """Fills `parts`; all ranks take as many turns as the widest share needs."""
        flat = x_TW.reshape(-1)
        step = PIECE_BYTES // x_TW.element_size()
        for begin in range(0, len(x_TW) * max(widths), step):
            views = self._block.exchange(flat[begin : begin + step], what)
            for part, view in zip(parts, views, strict=False):
                piece = part.view(-1)[begin : begin + step]
                piece.copy_(view[: piece.numel()])
