"""Makes the group of a stage's ranks for one epoch.

Nothing is waited for here: ranks meet in the first step's agreement, whatever the order in which
they opened the epoch.
"""

from dataclasses import dataclass

from runtime.errors import InvalidRequestError
from stage_worker.collectives.group import SOLO, RankGroup
from stage_worker.collectives.shared_block import SharedBlock
from stage_worker.collectives.shared_memory import SharedMemoryGroup

BACKENDS = ("auto", "shm")


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """`name` is the same on all ranks of a stage and on no other, and new in every epoch.

    `backend` is one of `BACKENDS`. `timeout_seconds` is the longest wait for another rank.
    """

    name: str
    rank: int
    size: int
    backend: str = "auto"
    timeout_seconds: float = 30.0
    device: str = "cpu"


def open_group(spec: GroupSpec) -> RankGroup:
    """This rank's end; whoever opens it also closes it, on the device's thread.

    `close` must not run beside a call of the device's thread, so `abort` comes first: it ends what
    that thread waits for. Raises `InvalidRequestError` for a backend that does not fit the device.
    """
    if spec.size == 1:
        return SOLO
    if spec.backend not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise InvalidRequestError(field="backend", problem=f"{spec.backend!r} is none of {known}")
    return SharedMemoryGroup(SharedBlock(spec.name, spec.rank, spec.size, spec.timeout_seconds))
