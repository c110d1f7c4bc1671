"""Holds what the coordinator knows of one worker: its hello, its allocation and its reports."""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Final

from coordinator.membership.assignment import Assignment
from runtime.errors import WorkerDiedError
from runtime.host.devices import DeviceUsage
from runtime.protocol.step import RankActivity

# A worker with this fault score failed an attempt alone, or took part in several that failed.
_FAULT_LIMIT: Final = 1.0
# After this many failures while serving, spare workers are preferred.
_FAILURE_LIMIT: Final = 2.0


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """What a worker reports at hello; `dtypes` are those that it computes at full speed."""

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
    """One joined worker process; the comments name the only writer of each group of fields."""

    identity: WorkerIdentity
    # `StageClient`: the part of a model that the worker has loaded.
    held: Assignment | None = None
    # `MeshService`, from heartbeats: `activity` belongs to the epoch of this coordinator id and
    # counter.
    usage: DeviceUsage | None = None
    activity: RankActivity | None = None
    active_epoch: tuple[str, int] = ("", 0)
    # `FaultScores`: whether a canary was right, the worker's shares in failed attempts, and the
    # number of epochs that served until this worker failed, both decaying.
    has_served: bool = False
    fault_score: float = 0.0
    failure_score: float = 0.0
    # `Membership`: the replica that has the worker; the latest time of departure in the event
    # loop's time, infinite unless the worker drains; whether it departed after draining.
    replica: int | None = None
    drain_deadline: float = math.inf
    is_released: bool = False
    departure_reason: str = ""
    departed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """The address, by which logs and errors name the worker."""
        return self.identity.address

    @property
    def exceeds_fault_limit(self) -> bool:
        """Whether the worker failed attempts itself, and did not only take part in one."""
        return self.fault_score >= _FAULT_LIMIT

    @property
    def fault_key(self) -> tuple[float, float]:
        """Sort key, smaller is better: failed attempts weigh more than failures while serving."""
        is_suspect = self.failure_score >= _FAILURE_LIMIT
        return self.fault_score, self.failure_score if is_suspect else 0.0

    @property
    def is_deprioritized(self) -> bool:
        """Whether spare workers without faults are allocated first."""
        return any(self.fault_key)

    @property
    def is_draining(self) -> bool:
        """Whether the worker departs as soon as no replica needs it."""
        return self.drain_deadline < math.inf

    async def watch(self) -> None:
        """Never returns: raises `WorkerDiedError` once the worker has departed."""
        await self.departed.wait()
        raise WorkerDiedError(worker=self.name, detail=self.departure_reason)
