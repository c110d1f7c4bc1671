"""When a failed generation is retried, and when not."""

import pytest

from stagemesh.client.retry import Attempts
from stagemesh.client.rpc_error import StagemeshRpcError

FULL = StagemeshRpcError("queue_full", "RESOURCE_EXHAUSTED", "full", retry_after_seconds=4.0)
GONE = StagemeshRpcError("unreachable", "UNAVAILABLE", "connection reset")


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_attempts_reached_server_that_stops_is_retried_with_backoff() -> None:
    attempts = Attempts(None, 30.0, Clock())
    first = attempts.pause_after(GONE, was_reached=True, has_updates=False)
    others = [attempts.pause_after(GONE, was_reached=False, has_updates=False) for _ in range(8)]
    assert 0.05 <= first <= 0.1
    assert 1.0 <= others[-1] <= 2.0


def test_attempts_server_never_reached_is_not_retried() -> None:
    with pytest.raises(StagemeshRpcError):
        Attempts(None, 30.0, Clock()).pause_after(GONE, was_reached=False, has_updates=False)


def test_attempts_started_answer_is_not_retried() -> None:
    with pytest.raises(StagemeshRpcError):
        Attempts(None, 30.0, Clock()).pause_after(GONE, was_reached=True, has_updates=True)


def test_attempts_rejection_is_not_retried() -> None:
    refused = StagemeshRpcError("prompt_too_long", "INVALID_ARGUMENT", "too long")
    with pytest.raises(StagemeshRpcError):
        Attempts(None, 30.0, Clock()).pause_after(refused, was_reached=True, has_updates=False)


def test_attempts_server_without_capacity_is_retried_after_its_delay() -> None:
    attempts = Attempts(None, 30.0, Clock())
    pauses = [attempts.pause_after(FULL, was_reached=True, has_updates=False) for _ in range(5)]
    assert all(4.0 < pause <= 6.0 for pause in pauses)


def test_attempts_delay_beyond_the_time_limit_is_not_retried() -> None:
    for attempts in (Attempts(3.0, 30.0, Clock()), Attempts(None, 3.0, Clock())):
        with pytest.raises(StagemeshRpcError):
            attempts.pause_after(FULL, was_reached=True, has_updates=False)


def test_attempts_failure_that_the_request_may_cause_is_not_retried() -> None:
    ended = StagemeshRpcError("epoch_ended", "UNAVAILABLE", "a stage died", retry_after_seconds=1.0)
    with pytest.raises(StagemeshRpcError):
        Attempts(None, 30.0, Clock()).pause_after(ended, was_reached=True, has_updates=False)


@pytest.mark.parametrize(("timeout_seconds", "retry_seconds"), [(None, 10.0), (10.0, 60.0)])
def test_attempts_end_at_their_limit(timeout_seconds: float | None, retry_seconds: float) -> None:
    clock = Clock()
    attempts = Attempts(timeout_seconds, retry_seconds, clock)
    attempts.pause_after(GONE, was_reached=True, has_updates=False)
    clock.now += 9.99
    with pytest.raises(StagemeshRpcError):
        attempts.pause_after(GONE, was_reached=False, has_updates=False)


def test_attempts_share_one_deadline() -> None:
    clock = Clock()
    attempts = Attempts(10.0, 60.0, clock)
    assert attempts.timeout_seconds == 10.0
    clock.now += 4.0
    assert attempts.timeout_seconds == 6.0
