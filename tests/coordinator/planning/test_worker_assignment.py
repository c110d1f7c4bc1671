"""Which worker runs which part: ranks on one host, weights kept, faults and links avoided."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.membership.assignment import Assignment
from coordinator.membership.membership import Membership
from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.replica_layout import plan_replica
from coordinator.planning.worker_assignment import assign_workers, describe_shortage, links_of
from runtime.model_config.model_config import load_model_config
from tests.coordinator.fake_records import make_identity, make_worker, make_workers


def make_nodes(**nodes: int) -> list[WorkerRecord]:
    """As many workers on each node as given, named `a0`, `a1` and so on."""
    return [make_worker(f"{node}{n}", node) for node, count in nodes.items() for n in range(count)]


def names(assigned: tuple[WorkerRecord, ...] | None) -> list[str]:
    assert assigned is not None
    return [each.identity.worker_id for each in assigned]


@pytest.fixture
def plan(toy_folder: Path) -> tuple[Assignment, ...]:
    """Two stages of one rank."""
    return _plan(toy_folder, (1,))


def _plan(folder: Path, tp: tuple[int, ...], pp: int = 2) -> tuple[Assignment, ...]:
    options = CoordinatorOptions(model="smollm2", pp=pp, tp=tp)
    return plan_replica(options, load_model_config(folder), "f00", 0)


def test_assign_new_workers_keep_the_order_in_which_they_joined(
    plan: tuple[Assignment, ...],
) -> None:
    first, second, spare = make_worker("a", "x"), make_worker("b", "y"), make_worker("c", "x")
    assert assign_workers(plan, (first, second, spare)) == (first, second)


def test_assign_simulated_workers_are_not_mixed_with_real_ones(
    plan: tuple[Assignment, ...],
) -> None:
    paced = [make_worker(name, kind="paced") for name in "pq"]
    first, second = make_workers("ab")
    assert assign_workers(plan, (paced[0], first)) is None
    assert describe_shortage(plan, (paced[0], first)) == "1 of 2"
    assert assign_workers(plan, (paced[0], first, second)) == (first, second)
    assert assign_workers(plan, paced) == tuple(paced)


def test_assign_worker_keeps_the_part_that_it_holds(plan: tuple[Assignment, ...]) -> None:
    holder, newcomer = make_workers("ab")
    holder.held = plan[1]
    assert assign_workers(plan, (holder, newcomer)) == (newcomer, holder)


def test_assign_worker_with_a_part_of_another_checkpoint_comes_last(
    plan: tuple[Assignment, ...],
) -> None:
    holder, newcomer = make_workers("ab")
    holder.held = replace(plan[1], weights_fingerprint="f01")
    assert assign_workers(plan, (holder, newcomer)) == (newcomer, holder)


def test_assign_worker_with_a_fault_comes_after_newcomers_even_if_it_holds_the_part(
    plan: tuple[Assignment, ...],
) -> None:
    membership = Membership(max_workers=3)
    membership.join(make_identity("a"), held=plan[0])
    faulty = membership.join(make_identity("b"), held=plan[1])
    assert membership.fault_scores.record_fault([faulty], now=0.0) == [faulty]
    membership.leave(faulty, "its canary is wrong")
    membership.join(make_identity("c"))
    back = membership.join(make_identity("b"), held=plan[1])
    assert names(assign_workers(plan, membership.free)) == ["a", "c"]
    membership.fault_scores.clear([back], ())
    membership.leave(back, "its network was gone")
    membership.join(make_identity("b"), held=plan[1])
    assert names(assign_workers(plan, membership.free)) == ["a", "b"]


def test_assign_as_few_of_two_suspects_as_possible(plan: tuple[Assignment, ...]) -> None:
    membership = Membership(max_workers=3)
    first, second = (
        membership.join(make_identity(name), part) for name, part in zip("ab", plan, strict=True)
    )
    assert membership.fault_scores.record_fault([first, second], now=0.0) == []
    assert names(assign_workers(plan, membership.free)) == ["a", "b"]
    newcomer = membership.join(make_identity("c"))
    assert names(assign_workers(plan, membership.free)) == ["a", "c"]
    # The second attempt fails, too: the fault is that of the worker in both.
    assert membership.fault_scores.record_fault([first, newcomer], now=1.0) == [first]
    assert names(assign_workers(plan, membership.free)) == ["c", "b"]


def test_assign_too_few_workers_returns_none(plan: tuple[Assignment, ...]) -> None:
    assert assign_workers(plan, make_workers("a")) is None
    assert describe_shortage(plan, make_workers("a")) == "1 of 2"


def test_assign_ranks_of_a_stage_share_a_host(toy_folder: Path) -> None:
    workers = [make_worker(name, name[0]) for name in ("a0", "b0", "a1", "c0", "b1")]
    assert names(assign_workers(_plan(toy_folder, (2,)), workers)) == ["a0", "a1", "b0", "b1"]


def test_assign_wide_stage_selects_before_narrow_ones(toy_folder: Path) -> None:
    plan = _plan(toy_folder, (1, 2, 1), pp=3)
    assert names(assign_workers(plan, make_nodes(a=2, b=1, c=1))) == ["b0", "a0", "a1", "c0"]


def test_assign_ranks_scattered_over_hosts_returns_none_with_a_reason(toy_folder: Path) -> None:
    plan = _plan(toy_folder, (2,))
    scattered = make_nodes(a=3, b=1)
    assert assign_workers(plan, scattered) is None
    assert describe_shortage(plan, scattered) == (
        "4 have joined (3 on a, 1 on b), but the ranks of a stage must share a host, and the "
        "stages have 2, 2"
    )


def test_assign_lost_rank_is_replaced_on_the_host_of_the_others(toy_folder: Path) -> None:
    plan = _plan(toy_folder, (2,))
    a0, a1, b0, spare_a, spare_b = (
        make_worker(name, name[0]) for name in ("a0", "a1", "b0", "a2", "b1")
    )
    for holder, part in ((a0, plan[2]), (a1, plan[3]), (b0, plan[1])):
        holder.held = part
    assert names(assign_workers(plan, (spare_a, a0, a1, b0, spare_b))) == ["b1", "b0", "a0", "a1"]


def test_assign_holder_runs_another_stage_only_if_no_other_worker_is_free(
    toy_folder: Path,
) -> None:
    plan = _plan(toy_folder, (2, 1))
    first, holder, spare = make_nodes(a=3)
    first.held = plan[0]
    holder.held = plan[2]
    assert names(assign_workers(plan, (first, holder, spare))) == ["a0", "a2", "a1"]


def test_assign_worker_keeps_the_same_part_of_another_replica(
    plan: tuple[Assignment, ...],
) -> None:
    newcomer, holder = make_workers("ab")
    holder.held = replace(plan[1], replica=7)
    assert assign_workers(plan, (holder, newcomer)) == (newcomer, holder)


def test_assign_each_replica_gets_its_own_workers_again(plan: tuple[Assignment, ...]) -> None:
    workers = make_workers("abcd")
    own = workers[2:]
    for worker, part in zip(workers, (*plan, *plan), strict=True):
        worker.held = part if worker in own else replace(part, replica=7)
    assert assign_workers(plan, workers) == tuple(own)


LINKS = [(a, b) for a in "abcd" for b in "abcd" if a != b]


@given(
    num_workers=st.integers(3, 4),
    broken=st.frozensets(st.sampled_from(LINKS)),
    held=st.permutations("abcd"),
)
def test_assign_avoids_broken_links_whenever_it_is_possible(
    toy_folder: Path, num_workers: int, broken: frozenset[tuple[str, str]], held: Sequence[str]
) -> None:
    plan = _plan(toy_folder, (1,), pp=3)
    workers = make_workers("abcd"[:num_workers])
    for part, name in zip(plan, held, strict=False):
        next((each for each in workers if each.identity.worker_id == name), workers[0]).held = part
    possible = [way for way in permutations(workers, 3) if not broken & set(links_of(plan, way))]
    assigned = assign_workers(plan, workers, broken)
    assert (assigned in possible) if possible else assigned is None


def test_assign_ranks_of_a_stage_avoid_a_broken_link_together(toy_folder: Path) -> None:
    workers = make_nodes(x=2, y=2, z=2)
    assigned = assign_workers(_plan(toy_folder, (2,)), workers, frozenset({("x1", "y1")}))
    assert names(assigned) == ["x0", "x1", "z0", "z1"]


@pytest.mark.parametrize("cut_off", ["x0", "x1", "x2"])
def test_assign_rank_that_does_not_reach_the_next_stage_is_replaced_on_its_host(
    toy_folder: Path, cut_off: str
) -> None:
    plan = _plan(toy_folder, (2,))
    workers = make_nodes(x=3, y=2)
    for part, worker in zip(plan, (*workers[:2], *workers[3:]), strict=True):
        worker.held = part
    assigned = assign_workers(plan, workers, frozenset({(cut_off, "y0"), ("y0", cut_off)}))
    assert set(names(assigned)) == {"x0", "x1", "x2", "y0", "y1"} - {cut_off}
