"""Collection of stage timings per step."""

import pytest

from runtime.protocol.step import StageTiming
from scheduler.cost_model.feedback import SentStep, StageRecord, StepWork, TimingCollector


def sent(number: int) -> SentStep:
    return SentStep(number, StepWork(num_tokens=1, num_decodes=1), sent_at=1.0, num_others=0)


def record(step: int, stage: int) -> StageRecord:
    timing = StageTiming(
        receive_seconds=0.0, queue_seconds=0.25, compute_seconds=0.5, idle_seconds=0.125
    )
    return StageRecord(step, stage, timing)


@pytest.mark.parametrize(
    ("reported", "completed", "is_complete"),
    [
        ([], 0, False),
        ([(0, 0)], 0, False),
        ([(0, 0), (0, 1)], 0, True),
        ([(0, 1), (0, 0)], 0, True),
        ([(1, 0), (1, 1)], 0, False),
        ([(0, 0), (1, 0), (1, 1)], 1, True),
    ],
)
def test_complete_with_reports_of_stages_returns_timings_of_all_or_none(
    reported: list[tuple[int, int]], completed: int, is_complete: bool
) -> None:
    collector = TimingCollector()
    for step, stage in reported:
        collector.of(sent(step)).add(record(step, stage))
    timings = collector.complete(sent(completed), num_stages=2, now=3.0)
    assert (timings is not None) is is_complete
    if timings is not None:
        assert timings.compute == {0: 0.5, 1: 0.5}
        assert timings.idle == {0: 0.125, 1: 0.125}
        assert timings.inside_seconds == 1.5
        assert timings.round_trip_seconds == 1.5  # 2 s less the queues


def test_complete_drops_earlier_steps() -> None:
    collector = TimingCollector()
    for stage in (0, 1):
        collector.of(sent(0)).add(record(0, stage))
    assert collector.complete(sent(1), num_stages=2, now=3.0) is None
    assert collector.complete(sent(0), num_stages=2, now=3.0) is None
