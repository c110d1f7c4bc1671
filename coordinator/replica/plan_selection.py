"""Owns which plan a replica carries out, and with which workers: as asked for, or with fewer.

It takes workers out of the membership; giving them back is `replica.py`'s.
"""

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

from coordinator.membership.assignment import Assignment
from coordinator.membership.fault_scores import Link
from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.degraded_layout import degraded_options, fits_memory, make_plan
from coordinator.planning.replica_layout import resolve_dtype, with_dtype
from coordinator.planning.worker_assignment import assign_workers, describe_shortage
from coordinator.replica.retry_policy import FormationRetryPolicy
from coordinator.replica.shared_context import SharedReplicaContext
from coordinator.telemetry.replica_telemetry import ReplicaTelemetry
from runtime.errors import StagemeshError


class ReplicaPlan:
    """The plan of one replica; `assignments` are in the order of stages, and of ranks within one.

    `options` are those that `assignments` were made from. `weights_bytes` is what the last load
    said of the whole model, 0 before.
    """

    def __init__(
        self,
        shared: SharedReplicaContext,
        replica: int,
        asked_for: tuple[Assignment, ...],
        telemetry: ReplicaTelemetry,
    ) -> None:
        self.assignments = asked_for
        self.options = shared.options
        self.weights_bytes = 0
        self._shared = shared
        self._replica = replica
        self._asked_for = asked_for
        self._telemetry = telemetry

    @property
    def asked_for(self) -> tuple[Assignment, ...]:
        """The plan that was asked for, in the dtype that the mesh computes in."""
        return with_dtype(self._asked_for, self._shared.dtype)

    @property
    def is_whole(self) -> bool:
        """It has as many stages as were asked for."""
        return len(self.assignments) == len(self._asked_for)

    @property
    def missing(self) -> str:
        """What the plan waits for, for people."""
        return describe_shortage(self.assignments, self._shared.membership.free)

    async def should_give_up(
        self,
        retry_policy: FormationRetryPolicy,
        cause: StagemeshError,
        workers: Sequence[WorkerRecord],
    ) -> bool:
        """Whether to give up after `cause`, with which a try of `workers` has ended.

        Never before workers had the time to come that waited for this coordinator.
        """
        shared = self._shared

        def should_give_up() -> bool:
            has_alternatives = self._has_alternatives(workers)
            return retry_policy.should_give_up(
                cause, has_served=shared.has_served, has_alternatives=has_alternatives
            )

        with suppress(TimeoutError):
            async with asyncio.timeout_at(shared.settled_at):
                await shared.membership.wait_until(lambda: not should_give_up())
        return should_give_up()

    def _has_alternatives(self, workers: Sequence[WorkerRecord]) -> bool:
        """Whether workers that spoiled nothing could carry it out, and not just `workers` again."""
        there = [
            worker
            for worker in self._shared.membership.workers
            if worker.replica in (None, self._replica)
            and not worker.exceeds_fault_limit
            and not worker.is_draining
        ]
        placed = assign_workers(
            self.assignments, there, self._shared.membership.fault_scores.broken_links
        )
        return placed is not None and set(placed) != set(workers)

    async def take_workers(self) -> tuple[WorkerRecord, ...]:
        """Workers for the plan that was asked for, after a while for one that makes do with fewer.

        Before the first service nothing less than what was asked for is served. Over a broken link
        only if there is no other way at all.
        """
        membership = self._shared.membership
        self._use_plan(self._shared.options, self._asked_for)
        if not self._shared.has_served:
            return await membership.allocate(self._replica, self._choose_whole)
        try:
            async with asyncio.timeout(self.options.replan_seconds):
                return await membership.allocate(self._replica, self._choose_whole)
        except TimeoutError:
            return await membership.allocate(self._replica, self._select_degraded)

    def _choose_whole(self, free: Sequence[WorkerRecord]) -> tuple[WorkerRecord, ...] | None:
        """Its workers for the plan that was asked for, as soon as there are enough for it.

        For a smaller one at once where they do not reach each other: to wait would not help.
        """
        broken = self._shared.membership.fault_scores.broken_links
        whole = self._choose(free, broken)
        if whole is not None or self._choose(free) is None:
            return whole
        smaller = self._choose_smaller(free, broken) if self._shared.has_served else None
        return smaller or self._choose(free)

    def _select_degraded(self, free: Sequence[WorkerRecord]) -> tuple[WorkerRecord, ...] | None:
        """Its workers for the largest plan that is possible."""
        broken = self._shared.membership.fault_scores.broken_links
        return self._choose_smaller(free, broken) or self._choose_smaller(free)

    def _choose(
        self, free: Sequence[WorkerRecord], broken: AbstractSet[Link] = frozenset()
    ) -> tuple[WorkerRecord, ...] | None:
        """Its workers, if those that are free suffice; which also settles what they compute in."""
        shared = self._shared
        plan = with_dtype(self.assignments, shared.dtype)
        plan = resolve_dtype(plan, shared.model.config, free)
        workers = assign_workers(plan, free, broken)
        if workers is not None:
            self.assignments, shared.dtype = plan, plan[0].dtype
        return workers

    def _choose_smaller(
        self, free: Sequence[WorkerRecord], broken: AbstractSet[Link] = frozenset()
    ) -> tuple[WorkerRecord, ...] | None:
        """Its workers for the largest plan that is possible with those that are free."""
        model = self._shared.model
        for options in degraded_options(self._shared.options):
            plan = make_plan(options, model.config, model.fingerprint, self._replica)
            if plan is None:
                continue
            self._use_plan(options, plan)
            workers = self._choose(free, broken)
            if workers is not None and fits_memory(plan, workers, self.weights_bytes):
                return workers
        self._use_plan(self._shared.options, self._asked_for)
        return None

    def _use_plan(self, options: CoordinatorOptions, assignments: tuple[Assignment, ...]) -> None:
        """From now on this is the plan."""
        self.options, self.assignments = options, assignments
        self._telemetry.reshape(options.tp_sizes)
