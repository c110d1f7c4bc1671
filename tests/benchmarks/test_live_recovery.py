"""Cycles from a stage's slowing down until the rate is that of the new best."""

from dataclasses import replace
from itertools import accumulate

import pytest

from benchmarks.live_options import LAYERS, PACED
from benchmarks.live_recovery import find_recovery, recovery_cells, simulate_decodes
from runtime.errors import InvalidRequestError
from simulator.model.pacing import read_pace

CHANGED_AT = 10.0


def token_times(cycles: list[float]) -> list[float]:
    """When a sequence gets its tokens: 0.1 s apart before the change, then in these cycles."""
    before = [0.1 * number for number in range(1, 101)]
    return before + [CHANGED_AT + after for after in accumulate(cycles)]


@pytest.mark.parametrize("num_slow", [0, 1, 7, 30])
def test_recovery_is_counted_in_cycles_that_were_slower_than_the_settled_ones(
    num_slow: int,
) -> None:
    times = token_times([0.8] * num_slow + [0.2] * 100)
    found = find_recovery([times] * 4, CHANGED_AT)
    assert found.num_cycles == num_slow
    assert found.seconds == pytest.approx(0.8 * num_slow, abs=0.01)
    assert found.rate_after == pytest.approx(4 / 0.2)
    assert found.rate_before == pytest.approx(4 / 0.1)


def test_recovery_single_fast_cycle_among_slow_ones_does_not_count() -> None:
    times = token_times([0.4] * 5 + [0.2] + [0.4] * 5 + [0.2] * 100)
    assert find_recovery([times], CHANGED_AT).num_cycles == 11


def test_recovery_cycle_that_began_before_the_change_does_not_make_up_for_slow_ones() -> None:
    times = token_times([0.05] * 5 + [0.22] * 5 + [0.2] * 100)
    assert find_recovery([times], CHANGED_AT).num_cycles == 8


def test_recovery_that_is_not_reached_is_reported() -> None:
    times = token_times([0.2, 0.4] * 40 + [0.2] * 81)
    found = find_recovery([times], CHANGED_AT)
    assert found.num_cycles == 80
    assert found.seconds == pytest.approx(24.0)
    found = find_recovery([token_times([0.2, 0.2, 0.2, 0.2, 0.6] * 30)], CHANGED_AT)
    assert found.num_cycles is None
    assert recovery_cells(found) == ("10.0", "5.0", "never", "-")


def test_recovery_of_a_run_that_is_too_short_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="run for longer"):
        find_recovery([token_times([0.2] * 12)], CHANGED_AT)


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("changed_at", [8.0, 11.3, 15.1])
def test_adaptive_after_a_stage_slows_down_reaches_its_new_maximum_within_20_cycles(
    changed_at: float, noise: float
) -> None:
    """As `benchmarks.live recovery` measures it, in the simulator: 32 decodes, no prompts."""
    pace = read_pace(PACED / "slow-stage.json")
    pace = replace(pace, changes=(replace(pace.changes[0], at_seconds=changed_at),), noise=noise)
    times, policy_snapshot = simulate_decodes(pace, LAYERS, "adaptive", 32, 250)
    found = find_recovery(times, changed_at)
    assert found.num_cycles is not None
    assert found.num_cycles <= 20
    assert policy_snapshot.stages[1].num_resets >= 1
    # The new best: two microbatches give 170 tokens a second, four equal shares 134.
    assert found.rate_after > 155.0
