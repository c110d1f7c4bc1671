"""Owns who is in the mesh: workers join, are lent to replicas, and leave with a reason.

A member that no replica has stands by. It knows nothing of gRPC (`mesh_service.py`) nor of what the
workers are used for (`replica.py`).
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from coordinator.membership.assignment import Assignment
from coordinator.membership.fault_scores import FaultScores
from coordinator.membership.worker_record import WorkerIdentity, WorkerRecord
from runtime.addresses import split_address
from runtime.errors import InvalidRequestError, ProtocolVersionError, WorkerRefusedError
from runtime.version import PROTOCOL_VERSION

MAX_FIELD_LENGTH = 256

ChooseFn = Callable[[Sequence[WorkerRecord]], tuple[WorkerRecord, ...] | None]


class Membership:
    """The joined workers, in the order in which they joined."""

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self._members: dict[str, WorkerRecord] = {}
        self.fault_scores = FaultScores(max_workers)
        self._changed = asyncio.Event()

    @property
    def workers(self) -> tuple[WorkerRecord, ...]:
        """Everybody who is in, first come first."""
        return tuple(self._members.values())

    def join(self, identity: WorkerIdentity, held: Assignment | None = None) -> WorkerRecord:
        """Lets a worker in, which may hold a part of a model from before; raises what `check` does.

        It keeps the blame that it went with.
        """
        self.check(identity)
        for worker in self._predecessors(identity):
            self.leave(worker, "it joined anew")
        worker = WorkerRecord(identity, held)
        self.fault_scores.sync(worker)
        self._members[identity.worker_id] = worker
        self._changed.set()
        return worker

    def check(self, identity: WorkerIdentity) -> None:
        """Raises `ProtocolVersionError` or `WorkerRefusedError` for a worker that may not join."""
        if identity.protocol_version != PROTOCOL_VERSION:
            raise ProtocolVersionError(expected=PROTOCOL_VERSION, actual=identity.protocol_version)
        reason = self._refusal(identity)
        if reason:
            worker = identity.address[:MAX_FIELD_LENGTH] or "without an address"
            raise WorkerRefusedError(worker=worker, reason=reason)

    def leave(self, worker: WorkerRecord, reason: str) -> None:
        """Takes a worker out; whoever watches it learns why. Only the first call counts."""
        if worker.departed.is_set():
            return
        del self._members[worker.identity.worker_id]
        worker.departure_reason = reason
        worker.departed.set()
        self._changed.set()

    def decay(self, now: float) -> None:
        """Forgets what has passed by `now`, so that whoever waits looks again."""
        if self.fault_scores.decay(self.workers, now):
            self._changed.set()

    @property
    def free(self) -> tuple[WorkerRecord, ...]:
        """Those that stand by: no replica has them, and they stay."""
        return tuple(
            worker
            for worker in self._members.values()
            if worker.replica is None and not worker.is_draining
        )

    async def allocate(self, replica: int, choose: ChooseFn) -> tuple[WorkerRecord, ...]:
        """Lends `replica` whom `choose` picks of those that are free, as soon as it picks.

        All at once: replicas that each hold a part of what they need would wait for ever.
        """
        while (workers := choose(self.free)) is None:
            await self._change()
        for worker in workers:
            worker.replica = replica
        return workers

    def release(self, workers: Iterable[WorkerRecord]) -> None:
        """They stand by again, for whoever waits; those that drain may go."""
        for worker in workers:
            worker.replica = None
            if worker.is_draining:
                self._release(worker)
        self._changed.set()

    def drain(self, worker: WorkerRecord, deadline: float) -> None:
        """Asks a worker to leave once it is not needed, and by `deadline` in any case."""
        worker.drain_deadline = min(worker.drain_deadline, deadline)
        if worker.replica is None:
            self._release(worker)
        self._changed.set()

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Returns when `is_so`, which is asked anew with each change."""
        while not is_so():
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _release(self, worker: WorkerRecord) -> None:
        worker.is_released = True
        self.leave(worker, "it was drained")

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
        for worker in self.workers:
            other = worker.identity
            if other.worker_id == identity.worker_id and other.address != identity.address:
                return f"worker id {identity.worker_id} is in the mesh already, at {other.address}"
            if other.address == identity.address and other.node != identity.node:
                problem = f"a worker on node {other.node} says that it answers there, too"
                return f"{problem}; give each an address that others can reach"
        if len(self._members) - len(predecessors) >= self._max_workers:
            return f"the mesh has its {self._max_workers} workers"
        return ""

    def _predecessors(self, identity: WorkerIdentity) -> list[WorkerRecord]:
        """Earlier lives of the same worker, whose end has not been noticed yet.

        Two processes of one node cannot listen at one address, so the older one is gone.
        """
        return [worker for worker in self.workers if worker.identity.address == identity.address]
