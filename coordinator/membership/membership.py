"""Tracks the workers of the mesh: they join, are allocated to replicas, and leave with a reason.

A worker without a replica is free. Membership knows neither gRPC nor what replicas do with workers.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from coordinator.membership.assignment import Assignment
from coordinator.membership.fault_scores import FaultScores
from coordinator.membership.worker_record import WorkerIdentity, WorkerRecord
from runtime.addresses import split_address
from runtime.errors import InvalidRequestError, ProtocolVersionError, WorkerRefusedError
from runtime.version import PROTOCOL_VERSION

MAX_FIELD_LENGTH = 256


class Selection(Protocol):
    """What a caller of `allocate` has selected; `workers` are those to allocate."""

    @property
    def workers(self) -> tuple[WorkerRecord, ...]: ...


SelectionT = TypeVar("SelectionT", bound=Selection)


class Membership:
    """The joined workers, in the order in which they joined."""

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self._workers: dict[str, WorkerRecord] = {}
        self.fault_scores = FaultScores(max_workers)
        self._changed = asyncio.Event()

    @property
    def workers(self) -> tuple[WorkerRecord, ...]:
        """All joined workers, in the order in which they joined."""
        return tuple(self._workers.values())

    @property
    def free(self) -> tuple[WorkerRecord, ...]:
        """The workers that no replica has and that do not drain."""
        return tuple(
            worker
            for worker in self._workers.values()
            if worker.replica is None and not worker.is_draining
        )

    def join(self, identity: WorkerIdentity, held: Assignment | None = None) -> WorkerRecord:
        """Adds a worker, with the part of a model that it still holds and its earlier fault scores.

        Raises what `check` raises.
        """
        self.check(identity)
        for predecessor in self._predecessors(identity):
            self.leave(predecessor, "it joined again")
        worker = WorkerRecord(identity, held)
        self.fault_scores.sync(worker)
        self._workers[identity.worker_id] = worker
        self._changed.set()
        return worker

    def check(self, identity: WorkerIdentity) -> None:
        """Raises `ProtocolVersionError` or `WorkerRefusedError` for a worker that may not join."""
        if identity.protocol_version != PROTOCOL_VERSION:
            raise ProtocolVersionError(expected=PROTOCOL_VERSION, actual=identity.protocol_version)
        reason = self._refusal_reason(identity)
        if reason:
            worker = identity.address[:MAX_FIELD_LENGTH] or "without an address"
            raise WorkerRefusedError(worker=worker, reason=reason)

    def leave(self, worker: WorkerRecord, reason: str) -> None:
        """Removes a worker and publishes the reason; later calls for the same worker do nothing."""
        if worker.departed.is_set():
            return
        del self._workers[worker.identity.worker_id]
        worker.departure_reason = reason
        worker.departed.set()
        self._changed.set()

    def decay_faults(self, now: float) -> None:
        """Lets fault scores decay, and waiting replicas select workers again if any did."""
        if self.fault_scores.decay(self.workers, now):
            self._changed.set()

    async def allocate(
        self, replica: int, select: Callable[[Sequence[WorkerRecord]], SelectionT | None]
    ) -> SelectionT:
        """Waits until `select` finds workers among the free ones, and allocates them to `replica`.

        All at once: replicas that each hold a part of what they need would deadlock. `select`
        changes nothing; the caller commits what is returned.
        """
        while (selection := select(self.free)) is None:
            await self._wait_for_change()
        for worker in selection.workers:
            worker.replica = replica
        return selection

    def release(self, workers: Iterable[WorkerRecord]) -> None:
        """Makes workers free again; those that drain leave."""
        for worker in workers:
            worker.replica = None
            if worker.is_draining:
                self._finish_draining(worker)
        self._changed.set()

    def drain(self, worker: WorkerRecord, deadline: float) -> None:
        """Makes a worker leave once no replica needs it, at `deadline` at the latest."""
        worker.drain_deadline = min(worker.drain_deadline, deadline)
        if worker.replica is None:
            self._finish_draining(worker)
        self._changed.set()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Returns when `condition` holds, which is evaluated at each change."""
        while not condition():
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _finish_draining(self, worker: WorkerRecord) -> None:
        worker.is_released = True
        self.leave(worker, "it was drained")

    def _refusal_reason(self, identity: WorkerIdentity) -> str:
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
        for worker in self.workers:
            other = worker.identity
            if other.worker_id == identity.worker_id and other.address != identity.address:
                return f"worker id {identity.worker_id} is in the mesh already, at {other.address}"
            if other.address == identity.address and other.node != identity.node:
                problem = f"a worker on node {other.node} has the same address"
                return f"{problem}; give each an address that other machines can reach"
        if len(self._workers) - len(self._predecessors(identity)) >= self._max_workers:
            return f"the mesh is full: it has its {self._max_workers} workers"
        return ""

    def _predecessors(self, identity: WorkerIdentity) -> list[WorkerRecord]:
        """Earlier processes of the same worker whose end has not been noticed yet.

        Two processes of one node cannot listen at one address, so the earlier one has ended.
        """
        return [worker for worker in self.workers if worker.identity.address == identity.address]
