"""What the ranks of a stage exchange through their segment: step agreement, and tensors.

Every group uses it, whatever transport carries its large tensors.
"""

import hashlib
from collections.abc import Sequence

from torch import Tensor

from runtime.errors import HeaderMismatchError, StagemeshError
from runtime.protocol.step import Step
from stage_worker.collectives.shared_memory_segment import RankStatus, SharedMemorySegment

_DIGEST_BYTES = 16


class DoubleBuffer:
    """One rank's end of a track; `number` is the same on all ranks."""

    def __init__(self, block: SharedMemorySegment, number: int) -> None:
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


def agree(block: SharedMemorySegment, step: Step, refusal: StagemeshError | None) -> None:
    """Shows a digest of the whole step, or the refusal, and compares all ranks'.

    Raises as `RankGroup.agree` says.
    """
    if refusal is not None:
        block.show_record(RankStatus.of_error(refusal))
        raise refusal
    digest = hashlib.blake2b(repr(step).encode(), digest_size=_DIGEST_BYTES).digest()
    records = block.exchange_records(RankStatus(step.number, digest))
    for rank, record in enumerate(records):
        if record.code:
            raise record.end(rank)
    for rank, record in enumerate(records):
        if record != records[0]:
            raise HeaderMismatchError(rank=rank, expected=_told(records[0]), actual=_told(record))


def _told(record: RankStatus) -> str:
    return f"step {record.step} with digest {record.digest.hex()}"
