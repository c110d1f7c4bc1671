"""Fault scores of workers and links: what raises, resets and halves them."""

import pytest

from coordinator.membership.fault_scores import HALF_LIFE_SECONDS, DecayingScores, FaultScores
from tests.coordinator.fake_records import make_worker, make_workers

LINK = ("a", "b")


def test_score_halves_after_each_half_life_without_an_increase_and_ends_at_zero() -> None:
    scores = DecayingScores[str](max_keys=4, half_life_seconds=10.0)
    scores.add("a", 1.0, now=100.0)
    assert (scores.decay(109.0), scores.get("a")) == (False, 1.0)
    assert (scores.decay(110.0), scores.get("a")) == (True, 0.5)
    assert (scores.decay(115.0), scores.get("a")) == (False, 0.5)
    scores.add("a", 1.0, now=115.0)
    assert (scores.decay(120.0), scores.get("a")) == (False, 1.5)
    assert (scores.decay(135.0), scores.get("a")) == (True, 0.375)
    assert (scores.decay(1e10), scores.get("a")) == (True, 0.0)
    assert not scores.decay(2e10)


def test_scores_of_more_keys_than_allowed_drop_the_oldest() -> None:
    scores = DecayingScores[str](max_keys=2, half_life_seconds=10.0)
    for key in ("a", "b", "a", "c"):
        scores.add(key, 1.0, now=0.0)
    assert [scores.get(key) for key in "abc"] == [2.0, 0.0, 1.0]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 7, 49, 103])
def test_suspects_of_as_many_attempts_as_there_are_suspects_exceed_the_limit(
    num_workers: int,
) -> None:
    scores = FaultScores(max_workers=num_workers)
    workers = make_workers(f"w{number}" for number in range(num_workers))
    for _ in range(num_workers - 1):
        assert scores.record_fault(workers, now=0.0) == []
    assert scores.record_fault(workers, now=0.0) == workers
    assert {worker.fault_score for worker in workers} == {1.0}


def test_suspect_that_departed_leaves_its_share_to_the_others() -> None:
    scores = FaultScores(max_workers=2)
    gone, other = make_workers("ab")
    gone.departed.set()
    assert scores.record_fault([gone, other], now=0.0) == [other]
    assert (gone.fault_score, other.fault_score) == (0.0, 1.0)


def test_worker_is_deprioritized_by_one_fault_or_by_two_failures_while_serving() -> None:
    scores = FaultScores(max_workers=3)
    faulty, failing, good = make_workers("abc")
    scores.record_fault([faulty, good], now=0.0)
    scores.clear([good], ())
    scores.record_failure([failing], now=0.0)
    assert [worker.is_deprioritized for worker in (faulty, failing, good)] == [True, False, False]
    scores.record_failure([failing], now=0.0)
    assert failing.is_deprioritized
    assert sorted((faulty, failing, good), key=lambda each: each.fault_key) == [
        good,
        failing,
        faulty,
    ]
    scores.reset_failures([failing])
    assert not failing.is_deprioritized


def test_workers_that_serve_together_lose_their_faults_and_keep_their_failures() -> None:
    scores = FaultScores(max_workers=2)
    workers = make_workers("ab")
    scores.record_fault(workers, now=0.0)
    scores.record_failure(workers, now=0.0)
    scores.clear(workers, ())
    assert [(each.fault_score, each.failure_score) for each in workers] == [(0.0, 1.0)] * 2
    assert all(each.has_served for each in workers)


def test_link_is_broken_after_two_faults_until_it_serves_or_an_hour_has_passed() -> None:
    scores = FaultScores(max_workers=2)
    for number, expected in enumerate([frozenset[object](), frozenset({LINK})]):
        scores.record_link_fault(LINK, now=float(number))
        assert scores.broken_links == expected
    scores.decay((), now=3600.0)
    assert scores.broken_links == {LINK}
    scores.decay((), now=3601.0)
    assert scores.broken_links == frozenset()
    scores.record_link_fault(LINK, now=3601.0)
    assert scores.broken_links == {LINK}
    scores.clear((), [LINK])
    assert scores.broken_links == frozenset()


def test_decay_updates_the_records_of_workers() -> None:
    scores = FaultScores(max_workers=1)
    worker = make_worker("a")
    scores.record_fault([worker], now=0.0)
    assert scores.decay([worker], now=HALF_LIFE_SECONDS)
    assert (worker.fault_score, worker.exceeds_fault_limit) == (0.5, False)
