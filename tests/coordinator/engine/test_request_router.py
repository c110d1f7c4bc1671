"""Acceptance, queues and ends of requests, with engines that have no epoch yet."""

import pytest
from prometheus_client import CollectorRegistry

from coordinator.engine.engine import Engine
from coordinator.engine.outputs import EngineOutputs, EngineStats
from coordinator.engine.request_router import MAX_LOGPROBS_PER_STEP, RequestRouter
from runtime.errors import (
    QueueFullError,
    ShuttingDownError,
    StagemeshError,
    TooManyLogprobsError,
)
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.step import SlotSampling
from scheduler import FixedPolicy, SequenceRequest


def make_router(max_waiting: int = 3) -> tuple[RequestRouter, list[EngineOutputs]]:
    """A router over two engines, and the outputs of both."""
    metrics = CoordinatorMetrics(CollectorRegistry())
    outputs: list[EngineOutputs] = []

    def process(reported: EngineOutputs) -> tuple[int, ...]:
        outputs.append(reported)
        return ()

    engines = [Engine(number, FixedPolicy(64), 1.0, metrics, process) for number in range(2)]
    return RequestRouter(engines, max_waiting), outputs


def make_requests(*sequence_ids: int, num_logprobs: int = 0) -> list[SequenceRequest]:
    sampling = SlotSampling(num_logprobs=num_logprobs)
    return [
        SequenceRequest(number, (5, 6), sampling, 4, frozenset(), 0.0) for number in sequence_ids
    ]


@pytest.mark.parametrize(
    ("num_queued", "num_new", "num_logprobs", "error"),
    [
        (0, 3, 0, None),
        (2, 1, 0, None),
        (3, 0, 0, None),
        (0, 4, 0, QueueFullError),
        (2, 2, 0, QueueFullError),
        (1, 1, MAX_LOGPROBS_PER_STEP // 2, None),
        (1, 1, MAX_LOGPROBS_PER_STEP, TooManyLogprobsError),
    ],
)
async def test_check_accepts_compares_requests_with_the_limits_of_queue_and_logprobs(
    num_queued: int, num_new: int, num_logprobs: int, error: type[StagemeshError] | None
) -> None:
    router, _ = make_router()
    router.enqueue(make_requests(*range(num_queued), num_logprobs=num_logprobs))
    new = make_requests(*range(10, 10 + num_new), num_logprobs=num_logprobs)
    if error is None:
        router.check_accepts(new)
        return
    with pytest.raises(error):
        router.check_accepts(new)


async def test_refuse_rejects_also_requests_without_sequences() -> None:
    router, _ = make_router()
    router.refuse(ShuttingDownError())
    with pytest.raises(ShuttingDownError):
        router.check_accepts([])


async def test_enqueue_while_no_engine_serves_spreads_requests_evenly() -> None:
    router, _ = make_router()
    router.enqueue(make_requests(1, 2))
    assert [engine.stats().num_requests for engine in router.engines] == [1, 1]
    assert router.stats() == EngineStats(num_requests=2, num_waiting=2, num_prompt_tokens=4)


async def test_cancel_removes_requests_and_ignores_unknown_ones() -> None:
    router, outputs = make_router()
    router.enqueue(make_requests(1, 2))
    router.cancel([1, 2, 99])
    await router.drained()
    assert (router.stats().num_requests, outputs) == (0, [])


async def test_fail_all_reports_each_request_with_the_error() -> None:
    router, outputs = make_router()
    router.enqueue(make_requests(1, 2))
    error = ShuttingDownError()
    router.fail_all(error)
    failed = {each.sequence_id: each.error for output in outputs for each in output.failed}
    assert failed == {1: error, 2: error}
    assert router.stats().num_requests == 0
