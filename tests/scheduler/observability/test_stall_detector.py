"""Detection of stalls."""

import pytest

from scheduler import NO_PROGRESS, Activity, Watchdog

IDLE = Activity(False, 0, 0, 0, can_send=True)
SENT = Activity(True, 2, 0, 3, can_send=True)
BLOCKED = Activity(True, 2, 0, 0, can_send=False)
STUCK = Activity(True, 0, 4, 0, can_send=True)


def test_idle_replica_has_no_timeout() -> None:
    watchdog = Watchdog(step_seconds=100.0, stall_seconds=10.0)
    assert watchdog.seconds_left(IDLE, now=0.0) is None
    assert watchdog.seconds_left(IDLE, now=1e9) is None


@pytest.mark.parametrize(
    ("activity", "patience", "cause", "detail"),
    [
        (SENT, 100.0, "step_timeout", "no result within 100 s"),
        (BLOCKED, 100.0, "step_timeout", "no credit within 100 s"),
        (STUCK, 10.0, NO_PROGRESS, "0 sequences run, 4 wait, and no step was made for 10 s"),
    ],
)
def test_alarm_after_timeout_names_the_stalled_part(
    activity: Activity, patience: float, cause: str, detail: str
) -> None:
    watchdog = Watchdog(step_seconds=100.0, stall_seconds=10.0)
    watchdog.moved(5.0)
    assert watchdog.seconds_left(activity, now=6.0) == patience - 1.0
    assert watchdog.seconds_left(activity, now=500.0) == 0.0
    alarm = watchdog.alarm(activity)
    assert (alarm.cause, alarm.detail) == (cause, detail)


def test_work_after_idle_has_the_full_timeout() -> None:
    watchdog = Watchdog(step_seconds=100.0, stall_seconds=10.0)
    watchdog.moved(0.0)
    assert watchdog.seconds_left(IDLE, now=50.0) is None
    assert watchdog.seconds_left(STUCK, now=60.0) == 10.0
    assert (
        watchdog.seconds_left(STUCK, now=64.0) == 6.0
    )  # woken in between, for example by a client


def test_result_restarts_the_timeout() -> None:
    watchdog = Watchdog(step_seconds=100.0, stall_seconds=10.0)
    watchdog.moved(0.0)
    watchdog.moved(90.0)
    assert watchdog.seconds_left(SENT, now=100.0) == 90.0
