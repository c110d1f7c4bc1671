"""Predicted time until a queue has room."""

import pytest

from scheduler import QueueForecast
from scheduler.sequences.waiting_queue import MAX_WAIT_SECONDS, NUM_STARTS


def test_forecast_of_even_admissions_is_proportional() -> None:
    queue = QueueForecast()
    for number in range(200):
        queue.started(2.0 * number)
    assert queue.wait_seconds(3, now=400.0) == pytest.approx(6.0, abs=1.0)


def test_forecast_without_history_is_one_second() -> None:
    assert QueueForecast().wait_seconds(100, now=50.0) == 1


def test_forecast_of_stalled_queue_grows() -> None:
    queue = QueueForecast()
    for _ in range(NUM_STARTS):
        queue.started(0.0)
    assert queue.wait_seconds(1, now=0.0) == 1
    assert queue.wait_seconds(64, now=30.0) == 30
    assert queue.wait_seconds(64, now=1e6) == MAX_WAIT_SECONDS
