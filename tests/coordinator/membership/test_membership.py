"""Allocation of workers to replicas, release, draining, and fault scores across memberships."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from coordinator.membership.fault_scores import HALF_LIFE_SECONDS
from coordinator.membership.membership import Membership
from coordinator.membership.worker_record import WorkerIdentity, WorkerRecord
from runtime.errors import WorkerRefusedError
from runtime.version import PROTOCOL_VERSION


@dataclass(frozen=True)
class Selected:
    workers: tuple[WorkerRecord, ...]


def identity(worker_id: str, port: int = 1) -> WorkerIdentity:
    return WorkerIdentity(
        PROTOCOL_VERSION, "b", worker_id, "here", f"127.0.0.1:{port}", "cpu", "", 0, 1
    )


def select_below_limit(free: Sequence[WorkerRecord]) -> Selected | None:
    """All free workers that are below the fault limit."""
    usable = tuple(worker for worker in free if not worker.exceeds_fault_limit)
    return Selected(usable) if usable else None


async def test_allocate_waits_until_enough_workers_have_joined() -> None:
    membership = Membership(max_workers=2)
    allocating = asyncio.create_task(
        membership.allocate(3, lambda free: Selected(tuple(free)) if len(free) == 2 else None)
    )
    first = membership.join(identity("a", 1))
    await asyncio.sleep(0)
    assert first.replica is None
    second = membership.join(identity("b", 2))
    assert (await allocating).workers == (first, second)
    assert [worker.replica for worker in membership.workers] == [3, 3]
    assert not membership.free
    membership.release((first,))
    assert membership.free == (first,)


async def test_allocate_selects_again_when_a_fault_score_has_decayed() -> None:
    membership = Membership(max_workers=1)
    (faulty,) = membership.fault_scores.record_fault([membership.join(identity("a"))], now=0.0)
    allocating = asyncio.create_task(membership.allocate(0, select_below_limit))
    await asyncio.sleep(0)
    membership.decay_faults(HALF_LIFE_SECONDS)
    assert (await allocating).workers == (faulty,)


def test_worker_that_joins_again_has_its_decayed_fault_score() -> None:
    membership = Membership(max_workers=1)
    (faulty,) = membership.fault_scores.record_fault([membership.join(identity("a"))], now=0.0)
    membership.leave(faulty, "it was evicted")
    membership.decay_faults(HALF_LIFE_SECONDS)
    assert membership.join(replace(identity("a"), pid=2)).fault_score == 0.5


async def test_draining_worker_leaves_when_its_replica_releases_it() -> None:
    membership = Membership(max_workers=2)
    used, free = membership.join(identity("a", 1)), membership.join(identity("b", 2))
    await membership.allocate(0, lambda _: Selected((used,)))
    membership.drain(used, deadline=1.0)
    membership.drain(free, deadline=1.0)
    assert (used.is_draining, used.departed.is_set()) == (True, False)
    assert (free.is_released, free.departure_reason) == (True, "it was drained")
    membership.release((used,))
    assert used.is_released
    assert membership.workers == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"worker_id": ""}, "names no worker id"),
        ({"node": "n" * 257}, "longer than 256"),
        ({"worker_id": "a", "address": "127.0.0.1:9"}, "a is in the mesh already, at 127.0.0.1:1"),
        ({"address": "127.0.0.1:1", "node": "there"}, "node here has the same address"),
        ({"address": "127.0.0.1:9"}, "its 1 workers"),
    ],
)
def test_join_that_is_refused_states_the_reason(changes: dict[str, str], reason: str) -> None:
    membership = Membership(max_workers=1)
    membership.join(identity("a", 1))
    with pytest.raises(WorkerRefusedError, match=reason):
        membership.join(replace(identity("b", 2), **changes))  # type: ignore[arg-type]


def test_join_again_from_the_same_address_replaces_the_earlier_process() -> None:
    membership = Membership(max_workers=1)
    earlier = membership.join(identity("a"))
    later = membership.join(identity("b"))
    assert earlier.departure_reason == "it joined again"
    assert membership.workers == (later,)
