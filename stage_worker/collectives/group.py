"""The interface to a stage's ranks that model code uses, and its form for a single rank.

Every method except `abort` is called on the device's thread, on all ranks in the same order.
Every step begins with `agree`.

Shapes: T rows, W one rank's columns, A the columns of all ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from runtime.errors import StagemeshError
from runtime.protocol.step import Step


class PendingSum(Protocol):
    """A sum over the ranks that is in progress."""

    def finish(self) -> Tensor:
        """Waits for the sum and returns the tensor that holds it; called once."""


class RankGroup(Protocol):
    """One rank's end of its stage's group, which exists for one epoch.

    All methods that wait raise `EpochEndedError` as soon as a rank aborts or closes, and
    `CollectiveTimeoutError` when a rank does not arrive in time.
    """

    @property
    def rank(self) -> int:
        """This rank's number within the stage."""

    @property
    def size(self) -> int:
        """Number of ranks in the stage."""

    @property
    def min_split_tokens(self) -> int | None:
        """Steps of this many tokens or more are computed in two slices; None: no step is."""

    @property
    def waited_seconds(self) -> float:
        """Total time this rank has waited for the others; excludes waits on a GPU's stream."""

    def agree(self, step: Step, refusal: StagemeshError | None) -> None:
        """Returns on all ranks if all have the same step and none refuses it; otherwise on none.

        Raises `refusal` on the rank that has it and an `EpochEndedError` with its cause on the
        others; if the steps differ, `HeaderMismatchError` on all.
        """

    def begin_all_reduce_(self, x: Tensor) -> PendingSum:
        """Begins an in-place all-reduce of the contiguous `x`, without waiting for other ranks.

        `x` must not be used until the sum is finished; then it has the same bits on every rank. Two
        sums may be in progress; another collective may begin and end while one is.
        """

    def all_reduce_(self, x: Tensor) -> Tensor:
        """`begin_all_reduce_` and `finish`."""

    def all_gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor:
        """All ranks' columns side by side, [T, A]; rank r has `widths[r]` of them."""

    def gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor | None:
        """What `all_gather` returns, on rank 0; None on the others."""

    def abort(self, error: StagemeshError) -> None:
        """Ends the group on all ranks: present and later waits raise an error with `error`'s cause.

        Thread-safe and idempotent; the first call counts.
        """

    def close(self) -> None:
        """Releases all resources; ranks that still wait for this one raise. Idempotent."""


@dataclass(frozen=True, slots=True)
class CompletedSum:
    """A sum over one rank."""

    x: Tensor

    def finish(self) -> Tensor:
        return self.x


class SingleRankGroup:
    """The group of a stage with one rank: every collective returns its input."""

    rank = 0
    size = 1
    min_split_tokens = None
    waited_seconds = 0.0

    def agree(self, step: Step, refusal: StagemeshError | None) -> None:
        if refusal is not None:
            raise refusal

    def begin_all_reduce_(self, x: Tensor) -> PendingSum:
        return CompletedSum(x)

    def all_reduce_(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor:
        return x_TW

    def gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor | None:
        return x_TW

    def abort(self, error: StagemeshError) -> None:
        """No rank waits."""

    def close(self) -> None:
        """No resources are held."""


SINGLE_RANK = SingleRankGroup()
