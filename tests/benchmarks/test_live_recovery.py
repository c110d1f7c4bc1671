"""Cycles from a stage's slowing down until the rate is that of the new best."""

from itertools import accumulate

import pytest

from benchmarks.live_recovery import find_recovery

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
