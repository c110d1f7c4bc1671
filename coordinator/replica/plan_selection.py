"""Selects the plan that a replica runs and its workers: as requested, or with fewer stages.

`_select_*` methods return a selection and change nothing; `_use_plan` commits it. Workers are
allocated here and released by `replica.py`.
"""

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass

from coordinator.membership.assignment import Assignment
from coordinator.membership.fault_scores import Link
from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.replica_layout import (
    degraded_options,
    fits_memory,
    resolve_dtype,
    try_plan,
    with_dtype,
)
from coordinator.planning.worker_assignment import assign_workers, describe_shortage
from coordinator.replica.retry_policy import FormationRetryPolicy
from coordinator.replica.shared_context import SharedReplicaContext
from coordinator.telemetry.replica_telemetry import ReplicaTelemetry
from runtime.errors import StagemeshError


@dataclass(frozen=True, slots=True)
class PlanSelection:
    """A plan, the options that it was made from, and its workers in the order of `assignments`."""

    options: CoordinatorOptions
    assignments: tuple[Assignment, ...]
    workers: tuple[WorkerRecord, ...]


class ReplicaPlan:
    """The plan of one replica; `assignments` are in the order of stages, and of ranks within one.

    `options` are those that `assignments` were made from. `weights_bytes` is the size of the whole
    model as reported by the last load, 0 before.
    """

    def __init__(
        self,
        shared: SharedReplicaContext,
        replica: int,
        requested: tuple[Assignment, ...],
        telemetry: ReplicaTelemetry,
    ) -> None:
        self.assignments = requested
        self.options = shared.options
        self.weights_bytes = 0
        self._shared = shared
        self._replica = replica
        self._requested = requested
        self._telemetry = telemetry

    @property
    def requested(self) -> tuple[Assignment, ...]:
        """The requested plan, in the dtype of the mesh."""
        return with_dtype(self._requested, self._shared.dtype)

    @property
    def is_degraded(self) -> bool:
        """Whether it has fewer stages than requested."""
        return len(self.assignments) < len(self._requested)

    @property
    def shortage(self) -> str:
        """A text that explains what the plan waits for."""
        return describe_shortage(self.assignments, self._shared.membership.free)

    async def should_give_up(
        self,
        retry_policy: FormationRetryPolicy,
        cause: StagemeshError,
        workers: Sequence[WorkerRecord],
    ) -> bool:
        """Whether to give up after `cause` has ended an attempt with `workers`.

        Waits until workers that were waiting for this coordinator have joined.
        """
        shared = self._shared

        def should_give_up() -> bool:
            return retry_policy.should_give_up(
                cause,
                has_served=shared.has_served,
                has_alternatives=self._has_alternatives(workers),
            )

        with suppress(TimeoutError):
            async with asyncio.timeout_at(shared.settled_at):
                await shared.membership.wait_until(lambda: not should_give_up())
        return should_give_up()

    def _has_alternatives(self, workers: Sequence[WorkerRecord]) -> bool:
        """Whether workers below the fault limit, other than exactly `workers`, suffice."""
        membership = self._shared.membership
        usable = [
            worker
            for worker in membership.workers
            if worker.replica in (None, self._replica)
            and not worker.exceeds_fault_limit
            and not worker.is_draining
        ]
        broken = membership.fault_scores.broken_links
        assigned = assign_workers(self.assignments, usable, broken)
        return assigned is not None and set(assigned) != set(workers)

    async def allocate_workers(self) -> tuple[WorkerRecord, ...]:
        """Allocates workers for the requested plan, or for a degraded one after `replan_seconds`.

        Before the first service only the requested plan is used. A broken link is used only if
        there is no other way.
        """
        membership, options = self._shared.membership, self._shared.options
        self._use_plan(options, self.requested)
        may_degrade = self._shared.has_served
        try:
            async with asyncio.timeout(options.replan_seconds if may_degrade else None):
                selection = await membership.allocate(self._replica, self._select_full)
        except TimeoutError:
            selection = await membership.allocate(self._replica, self._select_degraded)
        self._use_plan(selection.options, selection.assignments)
        return selection.workers

    def _use_plan(self, options: CoordinatorOptions, assignments: tuple[Assignment, ...]) -> None:
        self.options, self.assignments = options, assignments
        self._shared.dtype = assignments[0].dtype
        self._telemetry.reshape(options.tp_sizes)

    def _select_full(self, free: Sequence[WorkerRecord]) -> PlanSelection | None:
        """The requested plan, once there are enough workers for it.

        A degraded one at once if the workers do not reach each other: waiting would not help.
        """
        options = self._shared.options
        intact = self._select(options, self._requested, free, self._broken_links)
        any_links = intact or self._select(options, self._requested, free)
        if intact is not None or any_links is None or not self._shared.has_served:
            return any_links
        return self._select_largest(free, self._broken_links) or any_links

    def _select_degraded(self, free: Sequence[WorkerRecord]) -> PlanSelection | None:
        """The largest plan that the free workers can run."""
        return self._select_largest(free, self._broken_links) or self._select_largest(free)

    def _select_largest(
        self, free: Sequence[WorkerRecord], broken: AbstractSet[Link] = frozenset()
    ) -> PlanSelection | None:
        model = self._shared.model
        for options in degraded_options(self._shared.options):
            plan = try_plan(options, model.config, model.fingerprint, self._replica)
            found = None if plan is None else self._select(options, plan, free, broken)
            if found and fits_memory(found.assignments, found.workers, self.weights_bytes):
                return found
        return None

    def _select(
        self,
        options: CoordinatorOptions,
        assignments: tuple[Assignment, ...],
        free: Sequence[WorkerRecord],
        broken: AbstractSet[Link] = frozenset(),
    ) -> PlanSelection | None:
        """This plan in the dtype of the mesh, if the free workers suffice."""
        assignments = with_dtype(assignments, self._shared.dtype)
        assignments = resolve_dtype(assignments, self._shared.model.config, free)
        workers = assign_workers(assignments, free, broken)
        return None if workers is None else PlanSelection(options, assignments, workers)

    @property
    def _broken_links(self) -> frozenset[Link]:
        return self._shared.membership.fault_scores.broken_links
