"""The ranks of one stage as the model sees them, and the group of a stage that has one rank.

Every method but `abort` is called by the device's thread alone, on all ranks in the same order;
`agree` comes first in every step.

Shapes: T rows, W one rank's columns, A the columns of all ranks.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from runtime.errors import StagemeshError
from runtime.step import Step


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

    def agree(self, step: Step, refusal: StagemeshError | None) -> None:
        """Returns on all ranks if all have the same step and none refuses it; else on none.

        Raises `refusal` on the rank that has it and an `EpochEndedError` that tells its cause on
        the others; where headers differ, `HeaderMismatchError` on all.
        """

    def all_reduce_(self, x: Tensor) -> Tensor:
        """Adds all ranks' contiguous `x` up, in place and with the same bits on every rank."""

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


class SoloGroup:
    """The group of a stage of one rank, where there is nothing to do."""

    rank = 0
    size = 1

    def agree(self, step: Step, refusal: StagemeshError | None) -> None:
        """Raises `refusal`."""
        if refusal is not None:
            raise refusal

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


SOLO = SoloGroup()
