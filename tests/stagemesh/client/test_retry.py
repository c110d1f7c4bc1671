"""When a generation is asked for again, and when it is not."""

import pytest

from stagemesh.client.retry import Attempts
from stagemesh.client.rpc_error import StagemeshRpcError

FULL = StagemeshRpcError("queue_full", "RESOURCE_EXHAUSTED", "full", retry_after_seconds=4.0)
GONE = StagemeshRpcError("unreachable", "UNAVAILABLE", "connection reset")


class Clock:
    """Seconds that the test lets pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_attempts_server_that_went_away_is_asked_again_after_longer_pauses() -> None:
    attempts = Attempts(None, 30.0, Clock())
    first = attempts.pause_after(GONE, was_reached=True, has_updates=False)
    others = [attempts.pause_after(GONE, was_reached=False, has_updates=False) for _ in range(8)]
    assert 0.05 <= first <= 0.1
    assert 1.0 <= others[-1] <= 2.0


def test_attempts_server_that_never_was_there_is_not_waited_for() -> None:
    with pytest.raises(StagemeshRpcError):
        Attempts(None, 30.0, Clock()).pause_after(GONE, was_reached=False, has_updates=False)


def test_attempts_answer_that_has_begun_is_never_asked_for_again() -> None:
    with pytest.raises(StagemeshRpcError):
        Attempts(None, 30.0, Clock()).pause_after(GONE, was_reached=True, has_updates=True)


def test_attempts_refusal_is_final() -> None:
    refused = StagemeshRpcError("prompt_too_long", "INVALID_ARGUMENT", "too long")
    with pytest.raises(StagemeshRpcError):
        Attempts(None, 30.0, Clock()).pause_after(refused, was_reached=True, has_updates=False)


def test_attempts_server_without_room_is_asked_again_when_it_says() -> None:
    attempts = Attempts(None, 30.0, Clock())
    pauses = [attempts.pause_after(FULL, was_reached=True, has_updates=False) for _ in range(5)]
    assert all(4.0 < pause <= 6.0 for pause in pauses)


def test_attempts_server_without_room_for_longer_than_there_is_time_is_not_asked_again() -> None:
    for attempts in (Attempts(3.0, 30.0, Clock()), Attempts(None, 3.0, Clock())):
        with pytest.raises(StagemeshRpcError):
            attempts.pause_after(FULL, was_reached=True, has_updates=False)


def test_attempts_failure_that_the_request_may_have_caused_is_final() -> None:
    ended = StagemeshRpcError("epoch_ended", "UNAVAILABLE", "a stage died", retry_after_seconds=1.0)
    with pytest.raises(StagemeshRpcError):
        Attempts(None, 30.0, Clock()).pause_after(ended, was_reached=True, has_updates=False)


@pytest.mark.parametrize(("timeout_seconds", "retry_seconds"), [(None, 10.0), (10.0, 60.0)])
def test_attempts_end_with_their_time(timeout_seconds: float | None, retry_seconds: float) -> None:
    clock = Clock()
    attempts = Attempts(timeout_seconds, retry_seconds, clock)
    attempts.pause_after(GONE, was_reached=True, has_updates=False)
    clock.now += 9.99
    with pytest.raises(StagemeshRpcError):
        attempts.pause_after(GONE, was_reached=False, has_updates=False)


def test_attempts_deadline_is_that_of_all_tries_together() -> None:
    clock = Clock()
    attempts = Attempts(10.0, 60.0, clock)
    assert attempts.timeout_seconds == 10.0
    clock.now += 4.0
    assert attempts.timeout_seconds == 6.0
