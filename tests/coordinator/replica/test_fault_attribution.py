"""The table from causes to workers and links at fault."""

from collections.abc import Sequence

import pytest

from coordinator.replica.fault_attribution import attribute, find_fault
from runtime.errors import (
    EpochEndedError,
    LinkBrokenError,
    StageFailedError,
    StagemeshError,
    WorkerDiedError,
    WorkerFailedError,
    WorkerRefusedError,
)
from tests.coordinator.fake_records import make_membership, make_workers

DIED = WorkerDiedError(worker="b:1", detail="gone")
FAILED = WorkerFailedError(worker="b:1", reason="internal error")
REFUSED = WorkerRefusedError(worker="b:1", reason="its files differ")
BROKEN_LINK = LinkBrokenError(worker="a:1", peer="b:1", detail="no answer")
STAGE = StageFailedError(cause="position", detail="", workers=("b:1", "c:1"))
SECONDARY_STAGE = StageFailedError(cause="unavailable", detail="", workers=("b:1",))
CANARY = EpochEndedError(cause="canary", detail="wrong")


@pytest.mark.parametrize(
    ("cause", "served", "suspects"),
    [
        (DIED, "", "b"),
        (FAILED, "abc", "b"),
        (REFUSED, "a", "b"),
        (BROKEN_LINK, "abc", "ab"),
        (STAGE, "", "abc"),
        (STAGE, "ab", "bc"),
        (STAGE, "abc", "bc"),
        (STAGE, "bc", "abc"),
        (SECONDARY_STAGE, "ab", "c"),
        (SECONDARY_STAGE, "abc", "abc"),
        (CANARY, "", "abc"),
        (CANARY, "ac", "b"),
        (CANARY, "abc", "abc"),
    ],
)
def test_fault_before_serving_has_suspects(
    cause: StagemeshError, served: str, suspects: str
) -> None:
    workers = make_workers("abc")
    for worker in workers:
        worker.has_served = worker.identity.worker_id in served
    fault = find_fault(cause, workers, was_serving=False)
    assert "".join(each.identity.worker_id for each in fault.suspects) == suspects
    assert fault.failed == ()
    assert fault.link == (("a", "b") if cause is BROKEN_LINK else None)


@pytest.mark.parametrize(
    ("cause", "suspects", "failed"),
    [
        (DIED, "b", ""),
        (FAILED, "b", ""),
        (REFUSED, "b", ""),
        (BROKEN_LINK, "", ""),
        (STAGE, "", "bc"),
        (SECONDARY_STAGE, "", ""),
        (CANARY, "", ""),
    ],
)
def test_fault_while_serving_is_a_failure_of_the_stage_or_of_the_named_worker(
    cause: StagemeshError, suspects: str, failed: str
) -> None:
    fault = find_fault(cause, make_workers("abc"), was_serving=True)
    assert "".join(each.identity.worker_id for each in fault.suspects) == suspects
    assert "".join(each.identity.worker_id for each in fault.failed) == failed
    assert fault.link is None


@pytest.mark.parametrize(
    ("causes", "was_serving", "over_limit", "fault_scores", "failure_scores"),
    [
        ([REFUSED], False, "b", [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]),
        ([CANARY], False, "", [1 / 3, 1 / 3, 1 / 3], [0.0, 0.0, 0.0]),
        ([BROKEN_LINK], False, "", [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]),
        ([BROKEN_LINK, BROKEN_LINK], False, "ab", [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]),
        ([CANARY, CANARY, CANARY], False, "abc", [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
        ([STAGE, STAGE], True, "", [0.0, 0.0, 0.0], [0.0, 2.0, 2.0]),
        ([DIED], True, "b", [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]),
    ],
)
def test_attribute_adds_to_the_scores_and_returns_the_workers_over_the_limit(
    causes: Sequence[StagemeshError],
    was_serving: bool,
    over_limit: str,
    fault_scores: Sequence[float],
    failure_scores: Sequence[float],
) -> None:
    membership = make_membership("abc")
    workers, scores = membership.workers, membership.fault_scores
    for cause in causes:
        found = attribute(cause, workers, scores, now=0.0, was_serving=was_serving)
    assert "".join(each.identity.worker_id for each in found) == over_limit
    assert [each.fault_score for each in workers] == pytest.approx(fault_scores, abs=1e-5)
    assert [each.failure_score for each in workers] == failure_scores


def test_attribute_a_link_that_fails_two_attempts_is_broken() -> None:
    membership = make_membership("ab")
    for expected in (frozenset[object](), frozenset({("a", "b")})):
        attribute(
            BROKEN_LINK, membership.workers, membership.fault_scores, now=0.0, was_serving=False
        )
        assert membership.fault_scores.broken_links == expected
