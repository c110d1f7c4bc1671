"""How requests enter and leave an engine's scheduler, without a mesh."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from coordinator.engine.active_requests import ActiveRequests
from coordinator.engine.outputs import EngineOutputs
from coordinator.engine.step_loop import StepEvents
from runtime.errors import RequestCancelledError, StagemeshError
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.step import SampledToken, SlotSampling
from scheduler import FixedPolicy, SchedulerLimits, SequenceRequest
from tests.coordinator.engine.test_step_loop import LIMITS


class Requests(ActiveRequests):
    """With a record of its outputs; `stopped` are the ids that a stop string ends."""

    def __init__(self) -> None:
        self.outputs: list[EngineOutputs] = []
        self.stopped: list[int] = []
        self.wake = asyncio.Event()
        metrics = CoordinatorMetrics(CollectorRegistry())
        super().__init__(0, metrics, self._record, lambda: 1.0, self.wake)

    def _record(self, outputs: EngineOutputs) -> list[int]:
        self.outputs.append(outputs)
        return self.stopped

    def begin(self, limits: SchedulerLimits = LIMITS) -> None:
        self.begin_epoch(limits, FixedPolicy(8), first_step=0)

    def failed(self) -> list[tuple[int, StagemeshError]]:
        return [(*each,) for outputs in self.outputs for each in outputs.failed]

    def finished(self) -> list[int]:
        return [each for outputs in self.outputs for each in outputs.finished]


def request(sequence_id: int, num_prompt_tokens: int = 3, max_tokens: int = 4) -> SequenceRequest:
    prompt = tuple(range(num_prompt_tokens))
    return SequenceRequest(sequence_id, prompt, SlotSampling(), max_tokens, frozenset(), 0.0)


@pytest.fixture
async def requests() -> Requests:
    return Requests()


async def test_requests_before_the_first_epoch_wait_for_it(requests: Requests) -> None:
    requests.add(request(1))
    assert requests.scheduler is None
    assert [each.sequence_id for each in requests.without_slot()] == [1]
    requests.begin()
    assert requests.scheduler is not None
    assert requests.scheduler.num_waiting == 1
    assert requests.wake.is_set()


async def test_prompt_beyond_a_smaller_epochs_context_fails_alone(requests: Requests) -> None:
    requests.add(request(1, num_prompt_tokens=20))
    requests.add(request(2))
    requests.begin()
    smaller = SchedulerLimits(4, 4, 2, 8, 8, 2, 8)
    requests.begin(smaller)
    [(sequence_id, error)] = requests.failed()
    assert sequence_id == 1
    assert "20" in str(error)
    assert [each.sequence_id for each in requests] == [2]


async def test_adopted_request_at_its_last_length_is_finished(requests: Requests) -> None:
    requests.begin()
    other = Requests()
    other.add(request(1, max_tokens=2))
    handover = other.withdraw(1)
    assert len(other) == 0
    requests.adopt(type(handover)(handover.request, (5, 6), 0))
    assert requests.finished() == [1]
    assert len(requests) == 0


@pytest.mark.parametrize(
    ("problem", "stopped", "is_left"), [("", [], True), ("no token", [], False), ("", [1], False)]
)
async def test_apply_removes_what_a_problem_or_a_stop_string_ends(
    requests: Requests, problem: str, stopped: list[int], is_left: bool
) -> None:
    requests.begin()
    requests.add(request(1))
    assert requests.scheduler is not None
    step = requests.scheduler.schedule(0.0)
    assert step is not None
    token = SampledToken(step.chunks[0].slot, 9, problem=problem)
    events = requests.scheduler.update(step.number, (token,), 0.0)
    requests.stopped = stopped
    requests.apply(StepEvents(0.0, (), events))
    assert (1 in requests) is is_left
    assert requests.num_generated_tokens == (0 if problem else 1)
    assert requests.scheduler.num_running == is_left


async def test_fail_and_cancel_end_a_request_once_and_leave_the_engine_idle(
    requests: Requests,
) -> None:
    requests.begin()
    requests.add(request(1))
    requests.add(request(2))
    error = RequestCancelledError()
    requests.fail(1, error)
    requests.cancel((1, 2, 3))
    assert requests.failed() == [(1, error)]
    await requests.wait_idle()
    assert requests.scheduler is not None
    assert requests.scheduler.num_waiting == 0
