"""The size of the multiplicative policy."""

import pytest

from scheduler.cost_model.feedback import SentStep, StepWork
from scheduler.policies import MultiplicativeOptions, MultiplicativePolicy
from tests.scheduler.mesh_model import make_limits


class Drive:
    """A policy with sequential steps on a virtual clock."""

    def __init__(self, **changes: float | None) -> None:
        options = {"base_size": 100, "min_size": 1, "max_size": 1000} | changes
        self.policy = MultiplicativePolicy(MultiplicativeOptions(**options))  # type: ignore[arg-type]
        self.policy.start_epoch(make_limits())
        self.now = 0.0
        self.num_steps = 0

    def run(self, rates: list[float]) -> None:
        """One completed step for each rate in rows a second."""
        for rate in rates:
            work = StepWork(num_tokens=self.policy.size)
            sent = SentStep(self.num_steps, work, sent_at=self.now, num_others=0)
            self.now += self.policy.size / rate
            self.num_steps += 1
            self.policy.complete(sent, self.now)


def test_size_changes_once_in_ten_results() -> None:
    drive = Drive()
    drive.run([1000.0] * 9)
    assert drive.policy.size == 100
    drive.run([1000.0])
    assert drive.policy.size == 150


def test_size_of_one_grows() -> None:
    drive = Drive(base_size=1)
    drive.run([1000.0] * 10)
    assert drive.policy.size == 2


def test_size_after_scores_fell_shrinks_and_stays_within_its_bounds() -> None:
    drive = Drive(min_size=60)
    drive.run([1000.0] * 10)
    drive.run([10.0] * 10)
    assert drive.policy.size == 105
    for _ in range(4):
        drive.run([1.0] * 10)
    assert drive.policy.size == 60


def test_best_size_without_a_target_has_the_best_mean_score() -> None:
    drive = Drive()
    assert drive.policy.best_size() is None
    drive.run([1000.0] * 10)  # at 100
    drive.run([900.0] * 10)  # at 150: later and no faster
    assert drive.policy.best_size() == 100


def test_best_size_with_a_target_has_the_most_throughput_within_it() -> None:
    drive = Drive()
    drive.run([1000.0] * 10)  # at 100, 0.1 s each
    drive.run([1400.0] * 10)  # at 150, 0.107 s each
    assert drive.policy.best_size(0.2) == 150
    assert drive.policy.best_size(0.105) == 100
    assert drive.policy.best_size(0.01) is None


def test_size_beyond_the_latency_target_goes_back_to_the_best_within_it() -> None:
    drive = Drive(latency_seconds=0.11)
    drive.run([1000.0] * 10)
    drive.run([1200.0] * 10)  # at 150: 0.125 s, although the score is the best so far
    assert drive.policy.size == 100


def test_start_epoch_discards_history() -> None:
    drive = Drive()
    drive.run([1000.0] * 10)
    drive.policy.start_epoch(make_limits())
    assert drive.policy.size == 100
    assert drive.policy.best_size() is None


@pytest.mark.parametrize("num_tokens", [0])
def test_step_without_tokens_is_ignored(num_tokens: int) -> None:
    drive = Drive()
    drive.policy.complete(SentStep(0, StepWork(num_tokens), 0.0, 0), 1.0)
    assert drive.policy.best_size() is None
