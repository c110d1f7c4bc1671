"""What the ranks of a stage exchange through their segment: agreement on each step, and tensors.

Ranks agree on every step before any of them enters a collective, so a refused or different step
never leaves a rank waiting in one.
"""

import hashlib
from collections.abc import Sequence

from torch import Tensor

from runtime.errors import HeaderMismatchError, StagemeshError
from runtime.protocol.step import Step
from stage_worker.collectives.shared_memory_segment import RankStatus, SharedMemorySegment

_DIGEST_BYTES = 16


class DoubleBuffer:
    """One rank's end of an exchange of tensors through shared memory.

    A rank posts a piece and collects all ranks' pieces before it posts the next. Two buffers are
    used alternately: a rank that posts piece n has collected all pieces n - 1, so every rank has
    finished reading its piece n - 2. Exchanges that overlap need a `DoubleBuffer` each; `number`
    identifies it and is the same on all ranks.
    """

    def __init__(self, segment: SharedMemorySegment, number: int) -> None:
        self._segment = segment
        self._posted = segment.posted(number)
        self._buffers = segment.buffers(number)
        self._num_posted = 0
        self._views: list[Tensor] = []

    @property
    def is_open(self) -> bool:
        """Whether a posted piece has not been collected."""
        return bool(self._views)

    def post(self, piece: Tensor) -> None:
        """Publishes a flat piece of at most `PIECE_BYTES` to all ranks; does not wait."""
        assert not self.is_open
        self._num_posted += 1
        self._views = [buffer.view(piece.dtype) for buffer in self._buffers[self._num_posted % 2]]
        self._views[self._segment.rank][: piece.numel()].copy_(piece)
        self._segment.publish(self._posted, self._num_posted)

    def collect(self, what: str) -> Sequence[Tensor]:
        """Waits for all ranks' pieces; returns views of their buffers, by rank.

        The views have the posted piece's dtype and are valid until the next `post`. `what` names
        the collective in errors. Raises what `SharedMemorySegment.wait` raises.
        """
        views, self._views = self._views, []
        self._segment.wait(self._posted, self._num_posted, what)
        return views


def agree(segment: SharedMemorySegment, step: Step, refusal: StagemeshError | None) -> None:
    """Publishes the step's digest, or the refusal, and compares those of all ranks.

    Raises what `RankGroup.agree` raises.
    """
    if refusal is not None:
        segment.show_status(RankStatus.from_error(refusal))
        raise refusal
    digest = hashlib.blake2b(repr(step).encode(), digest_size=_DIGEST_BYTES).digest()
    statuses = segment.exchange_statuses(RankStatus(step.number, digest))
    for rank, status in enumerate(statuses):
        if status.code:
            raise status.as_error(rank)
    for rank, status in enumerate(statuses):
        if status != statuses[0]:
            raise HeaderMismatchError(
                rank=rank, expected=_describe(statuses[0]), actual=_describe(status)
            )


def _describe(status: RankStatus) -> str:
    return f"step {status.step} with digest {status.digest.hex()}"
