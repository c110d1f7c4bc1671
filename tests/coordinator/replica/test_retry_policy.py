"""How often the formation of a replica is retried, and with which pauses."""

import pytest

from coordinator.replica.retry_policy import FormationRetryPolicy
from runtime.errors import (
    CanaryMismatchError,
    EpochEndedError,
    StagemeshError,
    WorkerDiedError,
    WorkerFailedError,
    WorkerRefusedError,
)

REFUSED = WorkerRefusedError(worker="w", reason="its files differ")
FAILED = WorkerFailedError(worker="w", reason="internal error")
DIED = WorkerDiedError(worker="w", detail="killed")
ENDED = EpochEndedError(cause="position", detail="the same each time")


def failures_until_give_up(
    retry_policy: FormationRetryPolicy,
    cause: StagemeshError,
    most: int = 20,
    *,
    has_served: bool = False,
) -> int:
    """The number of consecutive failures until the policy gives up; `most` if it does not."""
    for number in range(1, most):
        retry_policy.record_failure(cause, has_just_served=False)
        if retry_policy.should_give_up(cause, has_served=has_served):
            return number
    return most


@pytest.mark.parametrize(
    ("cause", "number"),
    [
        (REFUSED, 1),
        (CanaryMismatchError(worst=1.0, tolerance=0.1), 1),
        (FAILED, 5),
        (ENDED, 5),
        (DIED, 20),
    ],
)
def test_retry_before_the_first_service_ends(cause: StagemeshError, number: int) -> None:
    assert failures_until_give_up(FormationRetryPolicy(0.1, 1.0), cause) == number


@pytest.mark.parametrize("cause", [REFUSED, FAILED, ENDED, DIED])
def test_retry_after_the_first_service_never_ends(cause: StagemeshError) -> None:
    retry_policy = FormationRetryPolicy(0.1, 1.0)
    retry_policy.record_failure(DIED, has_just_served=True)
    assert failures_until_give_up(retry_policy, cause, has_served=True) == 20


@pytest.mark.parametrize("cause", [REFUSED, FAILED, ENDED])
def test_retry_with_workers_below_the_fault_limit_continues(cause: StagemeshError) -> None:
    retry_policy = FormationRetryPolicy(0.1, 1.0)
    for _ in range(20):
        retry_policy.record_failure(cause, has_just_served=False)
        assert not retry_policy.should_give_up(cause, has_served=False, has_alternatives=True)
    assert retry_policy.should_give_up(cause, has_served=False, has_alternatives=False)


def test_retry_with_workers_that_fail_in_turn_ends() -> None:
    retry_policy = FormationRetryPolicy(0.1, 1.0)
    causes = [WorkerFailedError(worker=f"w{n}", reason=f"{n} bytes short") for n in range(5)]
    for cause in causes:
        assert not retry_policy.should_give_up(cause, has_served=False)
        retry_policy.record_failure(cause, has_just_served=False)
    assert retry_policy.should_give_up(causes[-1], has_served=False)


def test_pause_doubles_up_to_its_maximum_and_restarts_after_service() -> None:
    retry_policy = FormationRetryPolicy(0.1, 0.5)
    pauses = []
    for has_just_served in (True, False, False, False, True):
        retry_policy.record_failure(DIED, has_just_served=has_just_served)
        pauses.append(retry_policy.pause_seconds)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.1])
