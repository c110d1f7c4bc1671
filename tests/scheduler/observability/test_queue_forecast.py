"""How long a waiting line needs to get shorter."""

import pytest

from scheduler import QueueForecast
from scheduler.observability.queue_forecast import MAX_WAIT_SECONDS, NUM_STARTS


def test_line_that_gets_shorter_evenly_is_foreseen() -> None:
    queue = QueueForecast()
    for number in range(200):
        queue.started(2.0 * number)
    assert queue.wait_seconds(3, now=400.0) == pytest.approx(6.0, abs=1.0)


def test_line_without_a_history_is_worth_a_second_try_soon() -> None:
    assert QueueForecast().wait_seconds(100, now=50.0) == 1


def test_line_that_stands_is_foreseen_to_stand() -> None:
    queue = QueueForecast()
    for _ in range(NUM_STARTS):
        queue.started(0.0)
    assert queue.wait_seconds(1, now=0.0) == 1
    assert queue.wait_seconds(64, now=30.0) == 30
    assert queue.wait_seconds(64, now=1e6) == MAX_WAIT_SECONDS
