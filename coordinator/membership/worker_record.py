"""Owns what the coordinator knows of one worker: what it said at hello, and what it is doing."""

import asyncio
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from coordinator.membership.assignment import Assignment
from runtime.errors import WorkerDiedError
from runtime.host.devices import DeviceUsage
from runtime.protocol.step import RankActivity

# A worker that so many epochs failed at gives way to others that stand by.
_MANY_FAILURES: Final = 2


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """What a worker says about itself at hello; `dtypes` are what it computes at full speed."""

    protocol_version: int
    build: str
    worker_id: str
    node: str
    address: str
    device_kind: str
    device_name: str
    memory_bytes: int
    pid: int
    metrics_address: str = ""
    dtypes: tuple[str, ...] = ()


@dataclass(eq=False, slots=True)
class WorkerRecord:
    """One joined worker process; `held` is the part of a model that it has loaded.

    `replica` is the one that it is lent to; `has_served` says that a canary came out right through
    it, `usage` what its device said last, `activity` what it did in the epoch `active_epoch`, which
    is a coordinator's id and a counter. `blame` is its part in tries that came to nothing: one
    for each that it spoiled alone, less where others may have. `num_failures` counts the ends of
    epochs that served until this worker failed. `drain_deadline` is when it leaves
    at the latest, in the event loop's time, and infinite while it is not asked to. `is_released`
    says that it has left because it was.
    """

    identity: WorkerIdentity
    held: Assignment | None = None
    replica: int | None = None
    usage: DeviceUsage | None = None
    activity: RankActivity | None = None
    active_epoch: tuple[str, int] = ("", 0)
    has_served: bool = False
    blame: Fraction = Fraction(0)
    num_failures: Fraction = Fraction(0)
    drain_deadline: float = math.inf
    is_released: bool = False
    departure_reason: str = ""
    departed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """What people call it: where it answers."""
        return self.identity.address

    @property
    def exceeds_fault_limit(self) -> bool:
        """It has spoiled a try, not only been there when one was."""
        return self.blame >= 1

    @property
    def fault_key(self) -> tuple[Fraction, Fraction]:
        """What is held against it: tries that it spoiled weigh more than failures at work."""
        is_suspect = self.num_failures >= _MANY_FAILURES
        return self.blame, self.num_failures if is_suspect else Fraction(0)

    @property
    def is_deprioritized(self) -> bool:
        """Others that stand by are taken first."""
        return any(self.fault_key)

    @property
    def is_draining(self) -> bool:
        """It is to leave as soon as it is not needed."""
        return self.drain_deadline < math.inf

    async def watch(self) -> None:
        """Never returns: raises `WorkerDiedError` once the worker has left."""
        await self.departed.wait()
        raise WorkerDiedError(worker=self.name, detail=self.departure_reason)
