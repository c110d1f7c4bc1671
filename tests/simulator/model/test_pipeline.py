"""The times of steps in stages and on links."""

import math

import pytest

from scheduler import StepWork
from simulator.model.pipeline import LinkSpec, Pipeline, PipelineSpec, SpeedChange, layer_shares
from simulator.model.stage_times import Curve, ModelTimes

ONE_SECOND = ModelTimes(
    prompt=Curve({1.0: 4.0, 2.0: 4.0}),
    decode=Curve({1.0: 4.0, 2.0: 4.0}),
    attention=Curve({0.0: 0.0, 1.0: 0.0}),
    context=0.0,
)
WORK = StepWork(num_tokens=1, num_decodes=1)


def make_spec(
    link: LinkSpec | None = None,
    window: int = 8,
    shares: tuple[float, ...] = (0.25,) * 4,
    changes: tuple[SpeedChange, ...] = (),
) -> PipelineSpec:
    """Four stages of a second each, no noise and nothing between them."""
    return PipelineSpec(
        times=ONE_SECOND,
        shares=shares,
        link=link or LinkSpec(0.0, math.inf),
        row_bytes=1,
        window=window,
        noise=0.0,
        latency_seconds=0.0,
        changes=changes,
    )


def test_step_in_an_empty_pipeline_visits_every_stage_once() -> None:
    trace = Pipeline(make_spec(), seed=0).send(0, WORK, now=10.0)
    assert [visit.started_at for visit in trace.visits] == [10.0, 11.0, 12.0, 13.0]
    assert trace.done_at == 14.0


def test_steps_in_flight_follow_each_other_without_a_gap() -> None:
    pipeline = Pipeline(make_spec(), seed=0)
    traces = [pipeline.send(number, WORK, now=0.0) for number in range(3)]
    assert [trace.done_at for trace in traces] == [4.0, 5.0, 6.0]
    assert [trace.visits[0].timing.queue_seconds for trace in traces] == [0.0, 1.0, 2.0]
    assert traces[2].visits[1].timing.idle_seconds == 0.0


def test_link_latency_and_bandwidth_delay_every_hop() -> None:
    pipeline = Pipeline(make_spec(LinkSpec(0.5, bytes_per_second=0.5)), seed=0)
    traces = [pipeline.send(number, WORK, now=0.0) for number in range(2)]
    assert traces[0].visits[1].arrived_at == 1.0 + 2.0 + 0.5
    assert traces[1].visits[1].arrived_at == 3.0 + 2.0 + 0.5
    send = traces[1].visits[0].timing.send
    assert send is not None
    assert [visit.timing.receive_seconds for visit in traces[1].visits[:2]] == [0.0, 2.0]
    assert (send.step, send.seconds, send.hidden_seconds) == (0, 2.0, 1.0)


def test_window_bounds_the_steps_ahead_of_the_next_stage() -> None:
    spec = make_spec(window=1, shares=(0.25, 2.5))
    pipeline = Pipeline(spec, seed=0)
    starts = [pipeline.send(number, WORK, now=0.0).visits[0].started_at for number in range(7)]
    assert starts[:4] == [0.0, 1.0, 2.0, 3.0]
    assert starts[5:] == [11.0, 21.0]


def test_stage_slowdown_starts_at_its_time() -> None:
    pipeline = Pipeline(make_spec(changes=(SpeedChange(5.0, stage=1, factor=3.0),)), seed=0)
    before, after = pipeline.send(0, WORK, now=0.0), pipeline.send(1, WORK, now=5.0)
    assert before.done_at == 4.0
    assert after.done_at == 5.0 + 6.0


def test_equal_seeds_make_equal_noise() -> None:
    spec = PipelineSpec(ONE_SECOND, layer_shares([1, 1]), noise=0.1)
    done = [Pipeline(spec, seed).send(0, WORK, 0.0).done_at for seed in (1, 1, 2)]
    assert done[0] == done[1] != done[2]


def test_layer_shares_count_the_head_with_the_last_stage() -> None:
    assert layer_shares([2, 2], head_layers=4.0) == pytest.approx((0.25, 0.75))
