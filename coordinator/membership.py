"""Owns who is in the mesh: workers join, are lent to replicas, and leave with a reason.

A member that no replica has stands by. It knows nothing of gRPC (`mesh_service.py`) nor of what the
workers are used for (`replica.py`).
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from coordinator.assignment import Assignment
from coordinator.blames import Blames
from runtime.devices import DeviceUsage
from runtime.errors import (
    InvalidRequestError,
    ProtocolVersionError,
    WorkerDiedError,
    WorkerRefusedError,
)
from runtime.rpc import split_address
from runtime.step import RankActivity
from runtime.version import PROTOCOL_VERSION

MAX_FIELD_LENGTH = 256


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
class Member:
    """One joined worker process; `held` is the part of a model that it has loaded.

    `replica` is the one that it is lent to; `has_served` says that a canary came out right through
    it, `usage` what its device said last, `activity` what it did in the epoch `active_epoch`, which
    is a coordinator's id and a counter. `blame` is its part in tries that came to nothing: one
    for each that it spoiled alone, less where others may have. `drain_deadline` is when it leaves
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
    drain_deadline: float = math.inf
    is_released: bool = False
    gone_reason: str = ""
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """What people call it: where it answers."""
        return self.identity.address

    @property
    def is_guilty(self) -> bool:
        """It has spoiled a try, not only been there when one was."""
        return self.blame >= 1

    @property
    def is_draining(self) -> bool:
        """It is to leave as soon as it is not needed."""
        return self.drain_deadline < math.inf

    async def watch(self) -> None:
        """Never returns: raises `WorkerDiedError` once the worker has left."""
        await self.gone.wait()
        raise WorkerDiedError(worker=self.name, detail=self.gone_reason)


ChooseFn = Callable[[Sequence[Member]], tuple[Member, ...] | None]


class Membership:
    """The joined workers, in the order in which they joined."""

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self._members: dict[str, Member] = {}
        self._blames = Blames(max_workers)
        self._changed = asyncio.Event()

    @property
    def members(self) -> tuple[Member, ...]:
        """Everybody who is in, first come first."""
        return tuple(self._members.values())

    def join(self, identity: WorkerIdentity, held: Assignment | None = None) -> Member:
        """Lets a worker in, which may hold a part of a model from before; raises what `check` does.

        It keeps the blame that it went with.
        """
        self.check(identity)
        for member in self._predecessors(identity):
            self.leave(member, "it joined anew")
        member = Member(identity, held, blame=self._blames.of(identity.worker_id))
        self._members[identity.worker_id] = member
        self._changed.set()
        return member

    def check(self, identity: WorkerIdentity) -> None:
        """Raises `ProtocolVersionError` or `WorkerRefusedError` for a worker that may not join."""
        if identity.protocol_version != PROTOCOL_VERSION:
            raise ProtocolVersionError(expected=PROTOCOL_VERSION, actual=identity.protocol_version)
        reason = self._refusal(identity)
        if reason:
            worker = identity.address[:MAX_FIELD_LENGTH] or "without an address"
            raise WorkerRefusedError(worker=worker, reason=reason)

    def leave(self, member: Member, reason: str) -> None:
        """Takes a worker out; whoever watches it learns why. Only the first call counts."""
        if member.gone.is_set():
            return
        del self._members[member.identity.worker_id]
        member.gone_reason = reason
        member.gone.set()
        self._changed.set()

    def blame(self, suspects: Iterable[Member], now: float) -> list[Member]:
        """Counts a try that one of `suspects` has spoiled; returns those that are guilty by now.

        Each gets the same part of the blame. One that left by itself is not blamed: nobody had to
        find out that it is gone.
        """
        there = [member for member in suspects if not member.gone.is_set()]
        for member in there:
            part = Fraction(1, len(there))
            member.blame = self._blames.add(member.identity.worker_id, part, now)
        return [member for member in there if member.is_guilty]

    def acquit(self, members: Iterable[Member]) -> None:
        """They serve together, so none of them is broken."""
        for member in members:
            member.has_served = True
            member.blame = Fraction(0)
            self._blames.drop(member.identity.worker_id)

    def forgive(self, now: float) -> None:
        """Forgets the blame that has passed by `now`, so that whoever waits looks again."""
        if self._blames.halve(now):
            for member in self.members:
                member.blame = self._blames.of(member.identity.worker_id)
            self._changed.set()

    @property
    def free(self) -> tuple[Member, ...]:
        """Those that stand by: no replica has them, and they stay."""
        return tuple(
            member
            for member in self._members.values()
            if member.replica is None and not member.is_draining
        )

    async def take(self, replica: int, choose: ChooseFn) -> tuple[Member, ...]:
        """Lends `replica` whom `choose` picks of those that are free, as soon as it picks.

        All at once: replicas that each hold a part of what they need would wait for ever.
        """
        while (members := choose(self.free)) is None:
            await self._change()
        for member in members:
            member.replica = replica
        return members

    def give_back(self, members: Iterable[Member]) -> None:
        """They stand by again, for whoever waits; those that drain may go."""
        for member in members:
            member.replica = None
            if member.is_draining:
                self._release(member)
        self._changed.set()

    def drain(self, member: Member, deadline: float) -> None:
        """Asks a worker to leave once it is not needed, and by `deadline` in any case."""
        member.drain_deadline = min(member.drain_deadline, deadline)
        if member.replica is None:
            self._release(member)
        self._changed.set()

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Returns when `is_so`, which is asked anew with each change."""
        while not is_so():
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _release(self, member: Member) -> None:
        member.is_released = True
        self.leave(member, "it was drained")

    def _refusal(self, identity: WorkerIdentity) -> str:
        addresses = [each for each in (identity.address, identity.metrics_address) if each]
        texts = (identity.build, identity.worker_id, identity.node, *addresses)
        if not identity.worker_id or not identity.address:
            return "hello names no worker id or no address"
        if any(len(text) > MAX_FIELD_LENGTH for text in texts):
            return f"a field of hello is longer than {MAX_FIELD_LENGTH} characters"
        try:
            for address in addresses:
                split_address(address)
        except InvalidRequestError as error:
            return error.problem
        predecessors = self._predecessors(identity)
        for member in self.members:
            other = member.identity
            if other.worker_id == identity.worker_id and other.address != identity.address:
                return f"worker id {identity.worker_id} is in the mesh already, at {other.address}"
            if other.address == identity.address and other.node != identity.node:
                problem = f"a worker on node {other.node} says that it answers there, too"
                return f"{problem}; give each an address that others can reach"
        if len(self._members) - len(predecessors) >= self._max_workers:
            return f"the mesh has its {self._max_workers} workers"
        return ""

    def _predecessors(self, identity: WorkerIdentity) -> list[Member]:
        """Earlier lives of the same worker, whose end has not been noticed yet.

        Two processes of one node cannot listen at one address, so the older one is gone.
        """
        return [member for member in self.members if member.identity.address == identity.address]
