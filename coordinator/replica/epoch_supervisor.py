"""Owns when an epoch that could go on is ended all the same, for workers that leave or come.

It watches one epoch. A worker that drains is replaced: its replica's requests go to another
replica, or a spare loads its part while it still serves, or they end by themselves, whatever comes
first within the worker's time. A replica that makes do with fewer stages ends when there are
workers for all of them.
"""

import asyncio
from collections.abc import Sequence
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
# Who was put out may be back repaired, and is given one more chance.
_MAX_BLAME = 2

_log = get_logger()


def is_planned(error: StagemeshError) -> bool:
    """Whether an epoch ended on purpose: that speaks against nobody, and nothing is waited for."""
    return isinstance(error, EpochEndedError) and error.cause in (DRAINED, REGROWN)


class EpochSupervisor:
    """The watch over one epoch; `spares` are lent to the replica, to be given back with it."""

    def __init__(
        self,
        assignments: tuple[Assignment, ...],
        wanted: tuple[Assignment, ...],
        workers: Sequence[WorkerRecord],
        engine: Engine,
        membership: Membership,
        options: CoordinatorOptions,
    ) -> None:
        """`wanted` is the plan that was asked for, `assignments` the one that is carried out."""
        self.spares: tuple[WorkerRecord, ...] = ()
        self._assignments = assignments
        self._wanted = wanted
        self._members = workers
        self._engine = engine
        self._membership = membership
        self._options = options

    async def run(self) -> Never:
        """Raises `EpochEndedError` when the epoch is to end."""
        await self._membership.wait_until(self._has_news)
        if not self._draining:
            raise EpochEndedError(cause=REGROWN, detail="there are workers for all stages again")
        if self._engine.is_serving:
            await self._hand_over()
        names = ", ".join(worker.name for worker in self._draining)
        raise EpochEndedError(cause=DRAINED, detail=f"worker {names} leaves")

    @property
    def _draining(self) -> list[WorkerRecord]:
        return [worker for worker in self._members if worker.is_draining]

    @property
    def _staying(self) -> list[WorkerRecord]:
        return [worker for worker in self._members if not worker.is_draining]

    def _has_news(self) -> bool:
        if self._draining:
            return True
        if len(self._wanted) == len(self._assignments):
            return False
        # Who spoils one try after the other is no reason to end what serves.
        free = [worker for worker in self._membership.free if worker.blame < _MAX_BLAME]
        there = [*self._staying, *free]
        return (
            assign_workers(self._wanted, there, self._membership.fault_scores.broken_links)
            is not None
        )

    async def _hand_over(self) -> None:
        """Returns when nobody needs those that leave, or they will not wait any longer."""
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
        """Has spare workers load what those that leave hold; one that fails is put out."""
        while True:
            self.spares = await self._membership.allocate(self._engine.replica, self._find_spares)
            try:
                async with asyncio.TaskGroup() as tasks:
                    for part, worker in self._successors(self.spares):
                        tasks.create_task(self._load(part, worker))
            except* StagemeshError as group:
                cause = find_error(group)
                assert cause is not None
                self._put_out_spares(cause)
            else:
                return

    def _put_out_spares(self, cause: StagemeshError) -> None:
        """Those that failed; the others stand by again."""
        _log.warning("spare_failed", cause=str(cause))
        now = asyncio.get_running_loop().time()
        for worker in attribute(cause, self.spares, self._membership, now, was_serving=False):
            self._membership.leave(worker, str(cause))
        self._membership.release(self.spares)
        self.spares = ()

    def _find_spares(self, free: Sequence[WorkerRecord]) -> tuple[WorkerRecord, ...] | None:
        successors = self._successors([worker for worker in free if not worker.exceeds_fault_limit])
        return tuple(worker for _, worker in successors) or None

    def _successors(self, spares: Sequence[WorkerRecord]) -> list[tuple[Assignment, WorkerRecord]]:
        """Who of these takes over which part; none if they do not suffice."""
        there = [*self._staying, *spares]
        placed = (
            assign_workers(self._assignments, there, self._membership.fault_scores.broken_links)
            or ()
        )
        parts = zip(self._assignments, placed, strict=False)
        return [(part, worker) for part, worker in parts if worker not in self._members]

    async def _load(self, part: Assignment, worker: WorkerRecord) -> None:
        async with StageClient.connect(worker, self._options) as client:
            worker.held = None
            await client.load(part, lambda done_bytes, total_bytes: None)
            worker.held = part
