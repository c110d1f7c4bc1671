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
from coordinator.planning.degraded_layout import fits_memory, make_plan, smaller_options
from coordinator.planning.replica_layout import settle_dtype, with_dtype
from coordinator.planning.worker_assignment import place, what_is_missing
from coordinator.replica.retry_policy import FormationRetryPolicy
from coordinator.replica.shared_context import SharedReplicaContext
from coordinator.telemetry.telemetry import ReplicaTelemetry
from runtime.errors import StagemeshError


class ReplicaPlan:
    """The plan of one replica; `assignments` are in the order of stages, and of ranks within one.

    `options` are those that `assignments` were made from. `weights_bytes` is what the last load
    said of the whole model, 0 before.
    """

    def __init__(
        self,
        commons: SharedReplicaContext,
        replica: int,
        asked_for: tuple[Assignment, ...],
        telemetry: ReplicaTelemetry,
    ) -> None:
        self.assignments = asked_for
        self.options = commons.options
        self.weights_bytes = 0
        self._commons = commons
        self._replica = replica
        self._asked_for = asked_for
        self._telemetry = telemetry

    @property
    def asked_for(self) -> tuple[Assignment, ...]:
        """The plan that was asked for, in the dtype that the mesh computes in."""
        return with_dtype(self._asked_for, self._commons.dtype)

    @property
    def is_whole(self) -> bool:
        """It has as many stages as were asked for."""
        return len(self.assignments) == len(self._asked_for)

    @property
    def missing(self) -> str:
        """What the plan waits for, for people."""
        return what_is_missing(self.assignments, self._commons.membership.free)

    async def is_hopeless(
        self, patience: FormationRetryPolicy, cause: StagemeshError, members: Sequence[WorkerRecord]
    ) -> bool:
        """Whether to give up after `cause`, with which a try of `members` has ended.

        Never before workers had the time to come that waited for this coordinator.
        """
        commons = self._commons

        def is_over() -> bool:
            has_others = self._has_others(members)
            return patience.is_over(cause, has_served=commons.has_served, has_others=has_others)

        with suppress(TimeoutError):
            async with asyncio.timeout_at(commons.settled_at):
                await commons.membership.wait_until(lambda: not is_over())
        return is_over()

    def _has_others(self, members: Sequence[WorkerRecord]) -> bool:
        """Whether workers that spoiled nothing could carry it out, and not just `members` again."""
        there = [
            member
            for member in self._commons.membership.members
            if member.replica in (None, self._replica)
            and not member.is_guilty
            and not member.is_draining
        ]
        placed = place(self.assignments, there, self._commons.membership.standing.broken_links)
        return placed is not None and set(placed) != set(members)

    async def take_members(self) -> tuple[WorkerRecord, ...]:
        """Workers for the plan that was asked for, after a while for one that makes do with fewer.

        Before the first service nothing less than what was asked for is served. Over a broken link
        only if there is no other way at all.
        """
        membership = self._commons.membership
        self._carry_out(self._commons.options, self._asked_for)
        if not self._commons.has_served:
            return await membership.take(self._replica, self._choose_whole)
        try:
            async with asyncio.timeout(self.options.replan_seconds):
                return await membership.take(self._replica, self._choose_whole)
        except TimeoutError:
            return await membership.take(self._replica, self._choose_any)

    def _choose_whole(self, free: Sequence[WorkerRecord]) -> tuple[WorkerRecord, ...] | None:
        """Its workers for the plan that was asked for, as soon as there are enough for it.

        For a smaller one at once where they do not reach each other: to wait would not help.
        """
        broken = self._commons.membership.standing.broken_links
        whole = self._choose(free, broken)
        if whole is not None or self._choose(free) is None:
            return whole
        smaller = self._choose_smaller(free, broken) if self._commons.has_served else None
        return smaller or self._choose(free)

    def _choose_any(self, free: Sequence[WorkerRecord]) -> tuple[WorkerRecord, ...] | None:
        """Its workers for the largest plan that is possible."""
        broken = self._commons.membership.standing.broken_links
        return self._choose_smaller(free, broken) or self._choose_smaller(free)

    def _choose(
        self, free: Sequence[WorkerRecord], broken: AbstractSet[Link] = frozenset()
    ) -> tuple[WorkerRecord, ...] | None:
        """Its workers, if those that are free suffice; which also settles what they compute in."""
        commons = self._commons
        plan = with_dtype(self.assignments, commons.dtype)
        plan = settle_dtype(plan, commons.model.config, free)
        members = place(plan, free, broken)
        if members is not None:
            self.assignments, commons.dtype = plan, plan[0].dtype
        return members

    def _choose_smaller(
        self, free: Sequence[WorkerRecord], broken: AbstractSet[Link] = frozenset()
    ) -> tuple[WorkerRecord, ...] | None:
        """Its workers for the largest plan that is possible with those that are free."""
        model = self._commons.model
        for options in smaller_options(self._commons.options):
            plan = make_plan(options, model.config, model.fingerprint, self._replica)
            if plan is None:
                continue
            self._carry_out(options, plan)
            members = self._choose(free, broken)
            if members is not None and fits_memory(plan, members, self.weights_bytes):
                return members
        self._carry_out(self._commons.options, self._asked_for)
        return None

    def _carry_out(self, options: CoordinatorOptions, assignments: tuple[Assignment, ...]) -> None:
        """From now on this is the plan."""
        self.options, self.assignments = options, assignments
        self._telemetry.reshape(options.tp_sizes)
