"""A pipeline's efficiency: idle seconds by cause, and ratios to the limits."""

import math

import pytest

from runtime.protocol.step import StageTiming
from scheduler import SentStep, StageRecord, StepWork
from scheduler.observability.pipeline_meter import PipelineMeter

DECODES = StepWork(num_tokens=8, num_decodes=8, num_sequences=8, num_sampled=8)


def feed(
    meter: PipelineMeter, num_steps: int, idle: float, is_full: bool = True, num_others: int = 1
) -> None:
    """Steps through stages of 10 and 5 ms, round trip 40 ms, the first stage idle before each."""
    for number in range(num_steps):
        sent_at = number * (0.01 + idle)
        sent = SentStep(number, DECODES, sent_at, num_others=num_others, is_full=is_full)
        meter.observe(StageRecord(number, 0, StageTiming(0.0, 0.0, 0.01, idle)), sent)
        meter.observe(StageRecord(number, 1, StageTiming(0.0, 0.0, 0.005, 0.005 + idle)), sent)
        meter.complete(sent, now=sent_at + 0.04)


def test_meter_without_steps_has_no_ratio() -> None:
    ratios = PipelineMeter().ratios
    assert math.isnan(ratios.throughput)
    assert math.isnan(ratios.occupancy)


def test_meter_busy_share_of_the_slowest_stage_is_the_throughput_ratio() -> None:
    meter = PipelineMeter()
    feed(meter, 20, idle=0.01)
    assert meter.ratios.throughput == pytest.approx(0.5)


def test_meter_few_steps_in_flight_lower_the_limit_and_not_the_occupancy() -> None:
    """Two steps of 10 ms with a round trip of 40 ms keep a stage at most half busy."""
    two, four = PipelineMeter(), PipelineMeter()
    feed(two, 100, idle=0.01)
    feed(four, 100, idle=0.01, num_others=3)
    assert two.ratios.occupancy == pytest.approx(1.0, rel=0.02)
    assert two.ratios.occupancy <= 1.0
    assert four.ratios.occupancy == pytest.approx(0.5, rel=0.02)


def test_meter_attributes_all_idle_time_to_causes() -> None:
    full, starved = PipelineMeter(), PipelineMeter()
    feed(full, 40, idle=0.01)
    feed(starved, 40, idle=0.01, is_full=False)
    assert full.bubbles.total == pytest.approx(40 * (0.01 + 0.015))
    assert full.bubbles.imbalance > 0.1  # the second stage has half as much to do
    assert (full.bubbles.starved, starved.bubbles.coordinator) == (0.0, 0.0)
    assert full.bubbles.coordinator == pytest.approx(starved.bubbles.starved)


def test_meter_step_without_all_reports_is_ignored() -> None:
    meter = PipelineMeter()
    feed(meter, 1, idle=0.0)
    late = SentStep(1, DECODES, sent_at=0.0, num_others=0)
    meter.observe(StageRecord(1, 0, StageTiming(0.0, 0.0, 9.0, 0.0)), late)
    before = meter.ratios.occupancy
    meter.complete(late, now=9.0)
    assert meter.ratios.occupancy == before
