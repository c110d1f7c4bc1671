"""Exchanges of tensors through a stage's shared memory, one after the other.

A rank posts a piece and collects all ranks' before it posts the next. It has two places for them,
used in turn: who posts its n-th piece has collected all others' piece n - 1, hence they are done
with its piece n - 2. What is to be under way at the same time needs a track each.
"""

from collections.abc import Sequence

from torch import Tensor

from stage_worker.collectives.shared_memory_segment import SharedBlock


class DoubleBuffer:
    """One rank's end of a track; `number` is the same on all ranks."""

    def __init__(self, block: SharedBlock, number: int) -> None:
        self._block = block
        self._posted = block.posted(number)
        self._buffers = block.buffers(number)
        self._num_posted = 0
        self._views: list[Tensor] = []

    @property
    def is_open(self) -> bool:
        """A piece was posted and not collected."""
        return bool(self._views)

    def post(self, piece: Tensor) -> None:
        """Shows at most `PIECE_BYTES`, flat, to all ranks, and waits for none."""
        assert not self.is_open
        self._num_posted += 1
        self._views = [buffer.view(piece.dtype) for buffer in self._buffers[self._num_posted % 2]]
        self._views[self._block.rank][: piece.numel()].copy_(piece)
        self._block.publish(self._posted, self._num_posted)

    def collect(self, what: str) -> Sequence[Tensor]:
        """Views of all ranks' buffers, by rank, once all have posted; `what` is for errors.

        They have the posted piece's dtype, and are valid until the next piece is posted.
        """
        views, self._views = self._views, []
        self._block.wait(self._posted, self._num_posted, what)
        return views
