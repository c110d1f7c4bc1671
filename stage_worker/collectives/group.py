"""The ranks of one stage as the model sees them, and the group of a stage that has one rank.

Every method but `abort` is called by the device's thread alone, on all ranks in the same order;
`agree` comes first in every step.

Shapes: T rows, W one rank's columns, A the columns of all ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from runtime.errors import StagemeshError
from runtime.protocol.step import Step


class PendingSum(Protocol):
    """A sum over the ranks that was begun."""

    def finish(self) -> Tensor:
        """The tensor that was to be added up, with the sum in it; called once."""


class RankGroup(Protocol):
    """One rank's end of its stage's group, which lives for one epoch.

    All methods that wait raise `EpochEndedError` as soon as a rank aborts or closes,
    `CollectiveTimeoutError` when one does not come in time.
    """

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def size(self) -> int:
        """How many ranks the stage has."""

    @property
    def min_split_tokens(self) -> int | None:
        """Steps of so many tokens are computed in two slices, None being none (`overlap.py`)."""

    @property
    def waited_seconds(self) -> float:
        """How long this rank has waited for the others in all; on GPUs the host waits for none."""

    def agree(self, step: Step, refusal: StagemeshError | None) -> None:
        """Returns on all ranks if all have the same step and none refuses it; else on none.

        Raises `refusal` on the rank that has it and an `EpochEndedError` that tells its cause on
        the others; where headers differ, `HeaderMismatchError` on all.
        """

    def begin_all_reduce_(self, x: Tensor) -> PendingSum:
        """Begins to add all ranks' contiguous `x` up, in place, and waits for none of them.

        `x` belongs to the sum until it is finished, with the same bits on every rank. Two sums may
        be under way; another collective may begin and end beside one of them.
        """

    def all_reduce_(self, x: Tensor) -> Tensor:
        """The same, at once."""

    def all_gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor:
        """All ranks' columns side by side, [T, A]; rank r has `widths[r]` of them."""

    def gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor | None:
        """The same on rank 0, and None on the others."""

    def abort(self, end: StagemeshError) -> None:
        """Ends the group on all ranks: who waits, or comes later, raises what `end` tells.

        Called from any thread, and any number of times; the first one counts.
        """

    def close(self) -> None:
        """Gives everything back; ranks that still wait for this one raise. May come twice."""


@dataclass(frozen=True, slots=True)
class CompletedSum:
    """The sum of one rank."""

    x: Tensor

    def finish(self) -> Tensor:
        """`x`."""
        return self.x


class SingleRankGroup:
    """The group of a stage of one rank, where there is nothing to do."""

    rank = 0
    size = 1
    min_split_tokens = None
    waited_seconds = 0.0

    def agree(self, step: Step, refusal: StagemeshError | None) -> None:
        """Raises `refusal`."""
        if refusal is not None:
            raise refusal

    def begin_all_reduce_(self, x: Tensor) -> PendingSum:
        """It is `x`."""
        return CompletedSum(x)

    def all_reduce_(self, x: Tensor) -> Tensor:
        """`x`."""
        return x

    def all_gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor:
        """`x_TW`."""
        return x_TW

    def gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor | None:
        """`x_TW`."""
        return x_TW

    def abort(self, end: StagemeshError) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing is held."""


SINGLE_RANK = SingleRankGroup()
