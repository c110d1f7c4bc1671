"""How the multiplicative policy's size moves."""

import pytest

from scheduler.feedback import SentStep, StepWork
from scheduler.policies import MultiplicativeOptions, MultiplicativePolicy
from tests.scheduler.mesh_model import make_limits


def run(policy: MultiplicativePolicy, rates: list[float], start: float = 0.0) -> float:
    """One completed step for each rate in rows a second, one in flight; returns the end."""
    now = start
    for number, rate in enumerate(rates):
        work = StepWork(num_tokens=policy.size)
        sent = SentStep(number, work, sent_at=now, num_others=0)
        now += policy.size / rate
        policy.complete(sent, now)
    return now


def make(**changes: float | None) -> MultiplicativePolicy:
    options = {"base_size": 100, "min_size": 1, "max_size": 1000} | changes
    policy = MultiplicativePolicy(MultiplicativeOptions(**options))  # type: ignore[arg-type]
    policy.start_epoch(make_limits())
    return policy


def test_size_changes_once_in_ten_results() -> None:
    policy = make()
    run(policy, [1000.0] * 9)
    assert policy.size == 100
    run(policy, [1000.0])
    assert policy.size == 150


def test_size_of_one_grows() -> None:
    policy = make(base_size=1)
    run(policy, [1000.0] * 10)
    assert policy.size == 2


def test_size_after_scores_fell_shrinks_and_stays_within_its_bounds() -> None:
    policy = make(min_size=60)
    run(policy, [1000.0] * 10)
    run(policy, [10.0] * 10)
    assert policy.size == 105
    for _ in range(4):
        run(policy, [1.0] * 10)
    assert policy.size == 60


def test_best_size_without_a_target_has_the_best_mean_score() -> None:
    policy = make()
    assert policy.best_size() is None
    run(policy, [1000.0] * 10)  # at 100
    run(policy, [900.0] * 10)  # at 150: later and no faster
    assert policy.best_size() == 100


def test_best_size_with_a_target_has_the_most_throughput_within_it() -> None:
    policy = make()
    run(policy, [1000.0] * 10)  # at 100, 0.1 s each
    run(policy, [1400.0] * 10)  # at 150, 0.107 s each
    assert policy.best_size(0.2) == 150
    assert policy.best_size(0.105) == 100
    assert policy.best_size(0.01) is None


def test_size_beyond_the_latency_target_goes_back_to_the_best_within_it() -> None:
    policy = make(latency_seconds=0.11)
    run(policy, [1000.0] * 10)
    run(policy, [1200.0] * 10)  # at 150: 0.125 s, although the score is the best so far
    assert policy.size == 100


def test_start_epoch_forgets_everything() -> None:
    policy = make()
    run(policy, [1000.0] * 10)
    policy.start_epoch(make_limits())
    assert policy.size == 100
    assert policy.best_size() is None


@pytest.mark.parametrize("num_tokens", [0])
def test_step_without_tokens_says_nothing(num_tokens: int) -> None:
    policy = make()
    policy.complete(SentStep(0, StepWork(num_tokens), 0.0, 0), 1.0)
    assert policy.best_size() is None
