"""Which plan a replica runs with the workers that are free, and when it gives up."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from coordinator.membership.membership import Membership
from coordinator.options import CoordinatorOptions
from coordinator.planning.replica_layout import plan_replica
from coordinator.replica.plan_selection import ReplicaPlan
from coordinator.replica.retry_policy import FormationRetryPolicy
from coordinator.replica.shared_context import SharedReplicaContext
from coordinator.telemetry.replica_telemetry import ReplicaTelemetry
from runtime.errors import WorkerRefusedError
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.model_config.model_config import load_model_config
from tests.coordinator.fake_records import make_identity, make_membership

BOTH_WAYS = [("a", "b"), ("b", "a")]


class _Model:
    """The parts of a served model that a plan depends on."""

    def __init__(self, folder: Path) -> None:
        self.config = load_model_config(folder)
        self.fingerprint = "f00"


def make_plan(
    folder: Path,
    membership: Membership,
    *,
    has_served: bool = False,
    settled_at: float = 0.0,
    **changes: Any,
) -> ReplicaPlan:
    """The plan of replica 0: two stages, of the four layers of the toy model."""
    settings: dict[str, Any] = {"pp": 2, "replan_seconds": 0.0} | changes
    options = CoordinatorOptions(model="smollm2", **settings)
    model = _Model(folder)
    shared = SharedReplicaContext(
        "c1",
        cast("Any", model),
        options,
        membership,
        asyncio.Event(),
        options.dtype,
        settled_at,
        has_served,
    )
    metrics = CoordinatorMetrics(CollectorRegistry(), options.tpot_seconds)
    telemetry = ReplicaTelemetry(0, options.tp_sizes, metrics)
    requested = plan_replica(options, model.config, model.fingerprint, 0)
    return ReplicaPlan(shared, 0, requested, telemetry)


def break_links(membership: Membership, *links: tuple[str, str]) -> None:
    for link in links * 2:
        membership.fault_scores.record_link_fault(link, now=0.0)


@pytest.mark.parametrize(
    ("ids", "broken", "has_served", "selected"),
    [
        ("ab", [], False, ["a", "b"]),
        ("ab", [("a", "b")], False, ["b", "a"]),
        ("abc", BOTH_WAYS, False, ["a", "c"]),
        ("ab", BOTH_WAYS, False, ["a", "b"]),
        ("ab", BOTH_WAYS, True, ["a"]),
        ("a", [], True, ["a"]),
    ],
    ids=["all", "other-order", "spare", "no-other-way", "degraded", "after-replan-seconds"],
)
async def test_allocate_workers_selects_the_plan(
    toy_folder: Path,
    ids: str,
    broken: list[tuple[str, str]],
    has_served: bool,
    selected: list[str],
) -> None:
    membership = make_membership(ids)
    break_links(membership, *broken)
    plan = make_plan(toy_folder, membership, has_served=has_served)
    workers = await plan.allocate_workers()
    assert [worker.identity.worker_id for worker in workers] == selected
    assert [worker.replica for worker in workers] == [0] * len(workers)
    assert (len(plan.assignments), plan.options.pp) == (len(workers), len(workers))
    assert plan.is_degraded is (len(workers) < 2)
    assert sum(part.num_layers for part in plan.assignments) == 4


async def test_allocate_workers_before_the_first_service_waits_for_the_requested_plan(
    toy_folder: Path,
) -> None:
    membership = make_membership("a")
    plan = make_plan(toy_folder, membership)
    allocating = asyncio.create_task(plan.allocate_workers())
    await asyncio.sleep(0)
    assert plan.shortage == "1 of 2"
    membership.join(make_identity("b"))
    assert len(await allocating) == 2


async def test_allocate_workers_again_after_a_degraded_plan_uses_the_requested_one(
    toy_folder: Path,
) -> None:
    membership = make_membership("a")
    plan = make_plan(toy_folder, membership, has_served=True)
    membership.release(await plan.allocate_workers())
    membership.join(make_identity("b"))
    assert len(await plan.allocate_workers()) == 2
    assert not plan.is_degraded


async def test_allocate_workers_sets_the_dtype_of_the_mesh_for_later_plans(
    toy_folder: Path,
) -> None:
    plan = make_plan(toy_folder, make_membership("ab"), dtype="auto")
    assert {part.dtype for part in plan.requested} == {"auto"}
    await plan.allocate_workers()
    assert {part.dtype for part in plan.assignments} == {"float32"}
    assert plan.requested == plan.assignments


async def test_selection_changes_nothing_until_the_workers_suffice(toy_folder: Path) -> None:
    membership = make_membership("a")
    plan = make_plan(toy_folder, membership, dtype="auto")
    before = plan.assignments
    allocating = asyncio.create_task(plan.allocate_workers())
    await asyncio.sleep(0)
    assert (plan.assignments, plan.options.pp, plan.requested) == (before, 2, before)
    allocating.cancel()


REFUSED = WorkerRefusedError(worker="a:1", reason="its files differ")


@pytest.mark.parametrize(
    ("ids", "faulty", "has_served", "expected"),
    [
        ("ab", "", False, True),
        ("abc", "", False, True),
        ("abc", "c", False, True),
        ("abc", "a", False, False),
        ("ab", "ab", True, False),
    ],
    ids=["no-spare", "same-selection", "faulty-spare", "spare", "has-served"],
)
async def test_should_give_up_without_other_workers_below_the_fault_limit(
    toy_folder: Path, ids: str, faulty: str, has_served: bool, expected: bool
) -> None:
    membership = make_membership(ids)
    plan = make_plan(toy_folder, membership, has_served=has_served)
    attempted = [each for each in membership.workers if each.identity.worker_id in "ab"]
    for worker in membership.workers:
        if worker.identity.worker_id in faulty:
            membership.fault_scores.record_fault([worker], now=0.0)
    retry_policy = FormationRetryPolicy(0.1, 1.0)
    retry_policy.record_failure(REFUSED, has_just_served=False)
    assert await plan.should_give_up(retry_policy, REFUSED, attempted) is expected


async def test_should_give_up_waits_until_workers_on_their_way_have_joined(
    toy_folder: Path,
) -> None:
    membership = make_membership("ab")
    membership.fault_scores.record_fault(membership.workers[:1], now=0.0)
    settled_at = asyncio.get_running_loop().time() + 60.0
    plan = make_plan(toy_folder, membership, settled_at=settled_at)
    retry_policy = FormationRetryPolicy(0.1, 1.0)
    retry_policy.record_failure(REFUSED, has_just_served=False)
    deciding = asyncio.create_task(plan.should_give_up(retry_policy, REFUSED, membership.workers))
    await asyncio.sleep(0)
    assert not deciding.done()
    membership.join(make_identity("late"))
    assert await deciding is False
