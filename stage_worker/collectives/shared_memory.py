"""A group whose ranks exchange everything through shared memory: for CPUs of one host.

On a CPU, gloo's small all-reduce costs milliseconds, more than what a small model computes between
two of them. Large tensors go in pieces through a fixed buffer.

Shapes: T rows, W one rank's columns, A the columns of all ranks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.errors import StagemeshError
from runtime.protocol.step import Step
from stage_worker.collectives.exchange import DoubleBuffer, agree
from stage_worker.collectives.group import PendingSum
from stage_worker.collectives.shared_memory_segment import (
    NUM_TRACKS,
    PIECE_BYTES,
    SharedMemorySegment,
)


class SharedMemoryGroup:
    """See `RankGroup`. Sums are made in the order of ranks, on every rank by itself."""

    def __init__(self, block: SharedMemorySegment, min_split_tokens: int | None = None) -> None:
        self.rank = block.rank
        self.size = block.size
        self.min_split_tokens = min_split_tokens
        self._block = block
        self._tracks = tuple(DoubleBuffer(block, number) for number in range(NUM_TRACKS))

    @property
    def waited_seconds(self) -> float:
        """All waits, those of agreements too."""
        return self._block.waited_seconds

    def agree(self, step: Step, refusal: StagemeshError | None) -> None:
        """Through the same memory."""
        agree(self._block, step, refusal)
        self._block.unlink()

    def begin_all_reduce_(self, x: Tensor) -> PendingSum:
        """Posts the first piece; the others follow when the sum is finished."""
        return _Sum(self._free_track(), x)

    def all_reduce_(self, x: Tensor) -> Tensor:
        """Every rank reads every piece of all others."""
        return self.begin_all_reduce_(x).finish()

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

    def _free_track(self) -> DoubleBuffer:
        """The same on all ranks, because all begin and finish in the same order."""
        return next(track for track in self._tracks if not track.is_open)

    def _exchange(
        self, x_TW: Tensor, widths: Sequence[int], parts: Sequence[Tensor], what: str
    ) -> None:
        """Fills `parts`; all ranks take as many turns as the widest share needs."""
        flat = x_TW.reshape(-1)
        step = PIECE_BYTES // x_TW.element_size()
        track = self._free_track()
        for begin in range(0, len(x_TW) * max(widths), step):
            track.post(flat[begin : begin + step])
            views = track.collect(what)
            for part, view in zip(parts, views, strict=False):
                piece = part.view(-1)[begin : begin + step]
                piece.copy_(view[: piece.numel()])


class _Sum:
    """A sum whose first piece is posted, so that other ranks need not wait for this one."""

    def __init__(self, track: DoubleBuffer, x: Tensor) -> None:
        self._track = track
        self._x = x
        self._pieces = x.view(-1).split(PIECE_BYTES // x.element_size())
        track.post(self._pieces[0])

    def finish(self) -> Tensor:
        """Adds each piece up and posts the next."""
        for number, piece in enumerate(self._pieces):
            if number:
                self._track.post(piece)
            first, second, *others = (
                part[: piece.numel()] for part in self._track.collect("an all-reduce")
            )
            torch.add(first, second, out=piece)
            for other in others:
                piece += other
        return self._x
