"""A group whose ranks exchange tensors through shared memory, for CPUs of one host.

On a CPU, gloo's small all-reduce takes milliseconds, longer than a small model computes between two
of them. Large tensors go through a fixed buffer in pieces.

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
    NUM_DOUBLE_BUFFERS,
    PIECE_BYTES,
    SharedMemorySegment,
)


class SharedMemoryGroup:
    """A `RankGroup` in which every rank adds all pieces itself, in the order of ranks."""

    def __init__(self, segment: SharedMemorySegment, min_split_tokens: int | None = None) -> None:
        self.rank = segment.rank
        self.size = segment.size
        self.min_split_tokens = min_split_tokens
        self._segment = segment
        self._buffers = tuple(DoubleBuffer(segment, number) for number in range(NUM_DOUBLE_BUFFERS))

    @property
    def waited_seconds(self) -> float:
        """All waits, including those of agreements."""
        return self._segment.waited_seconds

    def agree(self, step: Step, refusal: StagemeshError | None) -> None:
        """Agrees on the step; after the first agreement the file can be unlinked."""
        agree(self._segment, step, refusal)
        self._segment.unlink()

    def begin_all_reduce_(self, x: Tensor) -> PendingSum:
        """Posts the first piece; the others follow when the sum is finished."""
        return _SharedMemorySum(self._free_buffer(), x)

    def all_reduce_(self, x: Tensor) -> Tensor:
        """Every rank reads every piece of all others."""
        return self.begin_all_reduce_(x).finish()

    def all_gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor:
        """Every rank reads every piece of all others."""
        parts = [x_TW.new_empty(len(x_TW), width) for width in widths]
        self._exchange(x_TW, widths, parts, "an all-gather")
        return torch.cat(parts, dim=1)

    def gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor | None:
        """Rank 0 reads; the others wait until all have posted."""
        if self.rank:
            self._exchange(x_TW, widths, (), "a gather")
            return None
        parts = [x_TW.new_empty(len(x_TW), width) for width in widths]
        self._exchange(x_TW, widths, parts, "a gather")
        return torch.cat(parts, dim=1)

    def abort(self, error: StagemeshError) -> None:
        """Waiting ranks notice within about a millisecond."""
        self._segment.fail(error)

    def close(self) -> None:
        """Unlinks the segment's file; the memory is freed with its last mapping."""
        self._segment.close()

    def _free_buffer(self) -> DoubleBuffer:
        """The same buffer on all ranks, because all begin and finish in the same order."""
        return next(buffer for buffer in self._buffers if not buffer.is_open)

    def _exchange(
        self, x_TW: Tensor, widths: Sequence[int], parts: Sequence[Tensor], what: str
    ) -> None:
        """Fills `parts`; every rank posts as many pieces as the widest share needs."""
        flat = x_TW.reshape(-1)
        step = PIECE_BYTES // x_TW.element_size()
        buffer = self._free_buffer()
        for begin in range(0, len(x_TW) * max(widths), step):
            buffer.post(flat[begin : begin + step])
            views = buffer.collect(what)
            for part, view in zip(parts, views, strict=False):
                piece = part.view(-1)[begin : begin + step]
                piece.copy_(view[: piece.numel()])


class _SharedMemorySum:
    """A sum whose first piece is posted, so that other ranks do not wait for this one."""

    def __init__(self, buffer: DoubleBuffer, x: Tensor) -> None:
        self._buffer = buffer
        self._x = x
        self._pieces = x.view(-1).split(PIECE_BYTES // x.element_size())
        buffer.post(self._pieces[0])

    def finish(self) -> Tensor:
        """Sums each piece and posts the next."""
        for number, piece in enumerate(self._pieces):
            if number:
                self._buffer.post(piece)
            first, second, *others = (
                part[: piece.numel()] for part in self._buffer.collect("an all-reduce")
            )
            torch.add(first, second, out=piece)
            for other in others:
                piece += other
        return self._x
