"""How what is held against a worker passes with time."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from coordinator.membership.decaying_score import HALVING_SECONDS, DecayingScores
from coordinator.membership.membership import Membership
from coordinator.membership.worker_record import WorkerIdentity, WorkerRecord
from runtime.version import PROTOCOL_VERSION

WORKER = WorkerIdentity(PROTOCOL_VERSION, "build", "a", "here", "127.0.0.1:1", "cpu", "cpu", 1, 1)


def test_blame_halves_with_each_time_that_nothing_is_added_and_ends() -> None:
    blames: DecayingScores[str] = DecayingScores(max_names=4)
    blames.add("a", Fraction(1), now=100.0)
    assert not blames.halve(100.0 + HALVING_SECONDS - 1.0)
    assert blames.of("a") == 1
    assert blames.halve(100.0 + HALVING_SECONDS)
    assert blames.of("a") == Fraction(1, 2)
    assert not blames.halve(100.0 + 1.5 * HALVING_SECONDS)
    assert blames.add("a", Fraction(1), now=100.0 + 1.5 * HALVING_SECONDS) == Fraction(3, 2)
    assert not blames.halve(100.0 + 2 * HALVING_SECONDS)
    assert blames.halve(100.0 + 3.5 * HALVING_SECONDS)
    assert blames.of("a") == Fraction(3, 8)
    blames.halve(100.0 + 1e9 * HALVING_SECONDS)
    assert blames.of("a") == 0


def test_blames_of_more_workers_than_there_may_be_forget_the_oldest() -> None:
    blames: DecayingScores[str] = DecayingScores(max_names=2)
    for name in ("a", "b", "a", "c"):
        blames.add(name, Fraction(1), now=0.0)
    assert [blames.of(name) for name in "abc"] == [2, 0, 1]


async def test_worker_whose_blame_has_passed_is_taken_by_who_waits() -> None:
    membership = Membership(max_workers=2)
    (spoiler,) = membership.fault_scores.blame([membership.join(WORKER)], now=0.0)

    def innocent(free: Sequence[WorkerRecord]) -> tuple[WorkerRecord, ...] | None:
        return tuple(worker for worker in free if not worker.exceeds_fault_limit) or None

    taking = asyncio.create_task(membership.allocate(0, innocent))
    await asyncio.sleep(0)
    membership.decay(HALVING_SECONDS)
    assert await taking == (spoiler,)


def test_worker_that_comes_back_is_blamed_for_what_has_not_passed_meanwhile() -> None:
    membership = Membership(max_workers=2)
    (spoiler,) = membership.fault_scores.blame([membership.join(WORKER)], now=0.0)
    membership.leave(spoiler, "it was put out")
    membership.decay(HALVING_SECONDS)
    assert membership.join(replace(WORKER, pid=2)).blame == Fraction(1, 2)
