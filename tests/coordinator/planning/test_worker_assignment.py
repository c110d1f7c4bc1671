"""Who runs which part: the ranks of a stage on one host, and weights that stay where they are."""

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.membership.assignment import Assignment
from coordinator.membership.membership import Membership
from coordinator.membership.worker_record import WorkerIdentity, WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.replica_layout import plan_replica
from coordinator.planning.worker_assignment import assign_workers, describe_shortage
from runtime.model_config.model_config import load_model_config
from runtime.version import PROTOCOL_VERSION


def worker(worker_id: str, node: str = "here") -> WorkerRecord:
    return WorkerRecord(WorkerIdentity(1, "b", worker_id, node, f"{worker_id}:1", "cpu", "", 0, 1))


def workers(**nodes: int) -> list[WorkerRecord]:
    """So many workers on each node, named `a0`, `a1` and so on."""
    return [worker(f"{node}{n}", node) for node, count in nodes.items() for n in range(count)]


def names(placed: tuple[WorkerRecord, ...] | None) -> list[str]:
    assert placed is not None
    return [each.identity.worker_id for each in placed]


@pytest.fixture
def plan(toy_folder: Path) -> tuple[Assignment, ...]:
    """Two stages of one rank."""
    return _plan(toy_folder, (1,))


def _plan(folder: Path, tp: tuple[int, ...], pp: int = 2) -> tuple[Assignment, ...]:
    options = CoordinatorOptions(model="smollm2", pp=pp, tp=tp)
    return plan_replica(options, load_model_config(folder), "f00", 0)


def test_place_new_workers_go_in_the_order_they_joined(plan: tuple[Assignment, ...]) -> None:
    first, second, spare = worker("a", "x"), worker("b", "y"), worker("c", "x")
    assert assign_workers(plan, (first, second, spare)) == (first, second)


def test_place_paced_worker_is_no_spare_of_those_that_compute(
    plan: tuple[Assignment, ...],
) -> None:
    paced = [
        WorkerRecord(replace(each.identity, device_kind="paced"))
        for each in (worker("p"), worker("q"))
    ]
    first, second = worker("a"), worker("b")
    assert assign_workers(plan, (paced[0], first)) is None
    assert describe_shortage(plan, (paced[0], first)) == "1 of 2"
    assert assign_workers(plan, (paced[0], first, second)) == (first, second)
    assert assign_workers(plan, paced) == tuple(paced)


def test_place_worker_keeps_what_it_holds(plan: tuple[Assignment, ...]) -> None:
    holder, newcomer = worker("a"), worker("b")
    holder.held = plan[1]
    assert assign_workers(plan, (holder, newcomer)) == (newcomer, holder)


def test_place_what_is_held_of_another_checkpoint_is_taken_last(
    plan: tuple[Assignment, ...],
) -> None:
    holder, newcomer = worker("a"), worker("b")
    holder.held = replace(plan[1], weights_fingerprint="f01")
    assert assign_workers(plan, (holder, newcomer)) == (newcomer, holder)


def test_place_worker_that_spoiled_a_try_comes_behind_newcomers_though_it_holds_the_part(
    plan: tuple[Assignment, ...],
) -> None:
    membership = Membership(max_workers=3)
    good, bad, newcomer = (
        replace(worker(name).identity, protocol_version=PROTOCOL_VERSION) for name in "abc"
    )
    membership.join(good, held=plan[0])
    spoiler = membership.join(bad, held=plan[1])
    assert membership.fault_scores.record_fault([spoiler], now=0.0) == [spoiler]
    membership.leave(spoiler, "its canary is wrong")
    membership.join(newcomer)
    back = membership.join(bad, held=plan[1])
    assert names(assign_workers(plan, membership.free)) == ["a", "c"]
    membership.fault_scores.clear([back], ())
    membership.leave(back, "its network was gone")
    membership.join(bad, held=plan[1])
    assert names(assign_workers(plan, membership.free)) == ["a", "b"]


def test_place_of_two_that_may_have_spoiled_a_try_no_more_are_taken_than_must_be(
    plan: tuple[Assignment, ...],
) -> None:
    membership = Membership(max_workers=3)
    first, second = (
        membership.join(replace(worker(name).identity, protocol_version=PROTOCOL_VERSION), part)
        for name, part in zip("ab", plan, strict=True)
    )
    assert membership.fault_scores.record_fault([first, second], now=0.0) == []
    assert names(assign_workers(plan, membership.free)) == ["a", "b"]
    membership.join(replace(worker("c").identity, protocol_version=PROTOCOL_VERSION))
    assert names(assign_workers(plan, membership.free)) == ["a", "c"]
    # The other try came to nothing, too, so it was the one that was there both times.
    assert membership.fault_scores.record_fault([first, membership.workers[2]], now=1.0) == [first]
    assert names(assign_workers(plan, membership.free)) == ["c", "b"]


def test_place_too_few_workers_is_none(plan: tuple[Assignment, ...]) -> None:
    assert assign_workers(plan, (worker("a"),)) is None
    assert describe_shortage(plan, (worker("a"),)) == "1 of 2"


def test_place_ranks_of_a_stage_share_a_host(toy_folder: Path) -> None:
    plan = _plan(toy_folder, (2,))
    a0, b0, a1, c0, b1 = (worker(name, name[0]) for name in ("a0", "b0", "a1", "c0", "b1"))
    assert names(assign_workers(plan, (a0, b0, a1, c0, b1))) == ["a0", "a1", "b0", "b1"]


def test_place_wide_stage_chooses_before_narrow_ones(toy_folder: Path) -> None:
    plan = _plan(toy_folder, (1, 2, 1), pp=3)
    assert names(assign_workers(plan, workers(a=2, b=1, c=1))) == ["b0", "a0", "a1", "c0"]


def test_place_ranks_scattered_over_hosts_is_none_and_says_why(toy_folder: Path) -> None:
    plan = _plan(toy_folder, (2,))
    scattered = workers(a=3, b=1)
    assert assign_workers(plan, scattered) is None
    assert describe_shortage(plan, scattered) == (
        "4 have joined (3 on a, 1 on b), but the ranks of a stage must share a host, and the "
        "stages have 2, 2"
    )


def test_place_lost_rank_is_replaced_on_the_host_of_the_others(toy_folder: Path) -> None:
    plan = _plan(toy_folder, (2,))
    a0, a1, b0, spare_a, spare_b = (
        worker(name, name[0]) for name in ("a0", "a1", "b0", "a2", "b1")
    )
    for holder, part in ((a0, plan[2]), (a1, plan[3]), (b0, plan[1])):
        holder.held = part
    assert names(assign_workers(plan, (spare_a, a0, a1, b0, spare_b))) == ["b1", "b0", "a0", "a1"]


def test_place_holder_is_not_taken_for_another_stage_while_others_are_free(
    toy_folder: Path,
) -> None:
    plan = _plan(toy_folder, (2, 1))
    first, holder, spare = workers(a=3)
    first.held = plan[0]
    holder.held = plan[2]
    assert names(assign_workers(plan, (first, holder, spare))) == ["a0", "a2", "a1"]


def test_place_worker_keeps_what_it_holds_of_another_replica(plan: tuple[Assignment, ...]) -> None:
    newcomer, holder = workers(here=2)
    holder.held = replace(plan[1], replica=7)
    assert assign_workers(plan, (holder, newcomer)) == (newcomer, holder)


def test_place_each_replica_takes_its_own_back(plan: tuple[Assignment, ...]) -> None:
    everybody = workers(here=4)
    own = everybody[2:]
    for member_, part in zip(everybody, (*plan, *plan), strict=True):
        member_.held = part if member_ in own else replace(part, replica=7)
    assert assign_workers(plan, everybody) == tuple(own)
