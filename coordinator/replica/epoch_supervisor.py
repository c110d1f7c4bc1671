"""Ends an epoch that could go on, for workers that drain or that complete a degraded replica.

A replica that loses a worker to draining hands its requests to another replica, or loads the part
onto a spare while it still serves, or lets the requests finish; the first of these that succeeds
ends the epoch, the worker's deadline at the latest. A degraded replica ends its epoch when the
workers suffice for the requested plan.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Never

from coordinator.engine.engine import Engine
from coordinator.membership.assignment import Assignment
from coordinator.membership.membership import Membership
from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.worker_assignment import assign_workers
from coordinator.replica.fault_attribution import attribute
from coordinator.stage_client.stage_client import StageClient
from runtime.errors import EpochEndedError, StagemeshError, find_error
from runtime.host.logs import get_logger

DRAINED = "drained"
REGROWN = "regrown"
# An evicted worker may be repaired when it joins again, so it completes a plan once more.
_MAX_FAULT_SCORE = 2.0

_log = get_logger()


def is_planned(error: StagemeshError) -> bool:
    """Whether an epoch ended on purpose, which is no fault and needs no pause."""
    return isinstance(error, EpochEndedError) and error.cause in (DRAINED, REGROWN)


@dataclass(frozen=True, slots=True)
class _Replacements:
    """Spare workers, and the part of a draining worker that each takes over."""

    parts: tuple[Assignment, ...]
    workers: tuple[WorkerRecord, ...]


class EpochSupervisor:
    """Supervises one epoch; `spares` are allocated to the replica and released with it."""

    def __init__(
        self,
        assignments: tuple[Assignment, ...],
        requested: tuple[Assignment, ...],
        workers: Sequence[WorkerRecord],
        engine: Engine,
        membership: Membership,
        options: CoordinatorOptions,
    ) -> None:
        """`workers` run `assignments`, which are fewer than `requested` in a degraded replica."""
        self.spares: tuple[WorkerRecord, ...] = ()
        self._assignments = assignments
        self._requested = requested
        self._workers = workers
        self._engine = engine
        self._membership = membership
        self._options = options

    async def run(self) -> Never:
        """Raises `EpochEndedError` when the epoch is to end."""
        await self._membership.wait_until(self._should_act)
        if not self._draining:
            raise EpochEndedError(cause=REGROWN, detail="there are workers for all stages again")
        if self._engine.is_serving:
            await self._hand_over()
        names = ", ".join(worker.name for worker in self._draining)
        raise EpochEndedError(cause=DRAINED, detail=f"worker {names} leaves")

    @property
    def _draining(self) -> list[WorkerRecord]:
        return [worker for worker in self._workers if worker.is_draining]

    @property
    def _staying(self) -> list[WorkerRecord]:
        return [worker for worker in self._workers if not worker.is_draining]

    def _should_act(self) -> bool:
        if self._draining:
            return True
        if len(self._requested) == len(self._assignments):
            return False
        # A worker that fails every attempt is no reason to interrupt service.
        free = [each for each in self._membership.free if each.fault_score < _MAX_FAULT_SCORE]
        return self._assign(self._requested, free) is not None

    def _assign(
        self, assignments: tuple[Assignment, ...], spares: Sequence[WorkerRecord]
    ) -> tuple[WorkerRecord, ...] | None:
        broken = self._membership.fault_scores.broken_links
        return assign_workers(assignments, [*self._staying, *spares], broken)

    async def _hand_over(self) -> None:
        """Returns when no request needs the draining workers, or at their deadline."""
        self._engine.drain()
        deadline = min(worker.drain_deadline for worker in self._draining)
        left = deadline - asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            waits = (
                tasks.create_task(self._engine.drained()),
                tasks.create_task(self._load_spares()),
            )
            await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def _load_spares(self) -> None:
        """Loads the parts of the draining workers onto spares; repeats after failures."""
        while True:
            found = await self._membership.allocate(self._engine.replica, self._select_spares)
            self.spares = found.workers
            try:
                async with asyncio.TaskGroup() as tasks:
                    for part, worker in zip(found.parts, found.workers, strict=True):
                        tasks.create_task(self._load(part, worker))
            except* StagemeshError as group:
                cause = find_error(group)
                assert cause is not None
                self._release_spares(cause)
            else:
                return

    def _release_spares(self, cause: StagemeshError) -> None:
        """Evicts the spares that failed, and frees the others."""
        _log.warning("spare_failed", cause=str(cause))
        now = asyncio.get_running_loop().time()
        fault_scores = self._membership.fault_scores
        for worker in attribute(cause, self.spares, fault_scores, now, was_serving=False):
            self._membership.leave(worker, str(cause))
        self._membership.release(self.spares)
        self.spares = ()

    def _select_spares(self, free: Sequence[WorkerRecord]) -> _Replacements | None:
        """Free workers for the parts of the draining ones; None if they do not suffice."""
        usable = [worker for worker in free if not worker.exceeds_fault_limit]
        assigned = self._assign(self._assignments, usable)
        if assigned is None:
            return None
        new = [worker not in self._workers for worker in assigned]
        return _Replacements(
            tuple(compress(self._assignments, new)), tuple(compress(assigned, new))
        )

    async def _load(self, part: Assignment, worker: WorkerRecord) -> None:
        async with StageClient.connect(worker, self._options) as client:
            await client.load(part, lambda done_bytes, total_bytes: None)
