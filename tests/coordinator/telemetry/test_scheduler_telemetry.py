"""Metrics of a scheduler's steps and snapshots."""

import math

from prometheus_client import CollectorRegistry

from coordinator.telemetry.scheduler_telemetry import SchedulerMetrics, StepMetrics, scheduler_state
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.step import SequenceChunk, Step
from scheduler import PolicySnapshot
from scheduler.observability.snapshot import DecisionCounts


def test_observe_prefix_cache_counts_each_token_once() -> None:
    registry = CollectorRegistry()
    step_metrics = StepMetrics(CoordinatorMetrics(registry), 0)
    step_metrics.observe_prefix_cache(num_queried_tokens=10, num_hit_tokens=0)
    step_metrics.observe_prefix_cache(num_queried_tokens=30, num_hit_tokens=16)
    values = [
        registry.get_sample_value(f"stagemesh_prefix_cache_{what}_tokens_total", {"replica": "0"})
        for what in ("queried", "hit")
    ]
    assert values == [30.0, 16.0]


def test_observe_counts_tokens_sequences_and_each_preemption_once() -> None:
    registry = CollectorRegistry()
    step_metrics = StepMetrics(CoordinatorMetrics(registry), 0)
    chunks = (
        SequenceChunk(0, 0, (5, 6, 7)),
        SequenceChunk(1, 9, (5,), sample=True),
        SequenceChunk(2, 3, (6,), sample=True),
    )
    step_metrics.observe(Step(0, chunks=chunks), num_preemptions=2)
    step_metrics.observe(Step(1), num_preemptions=3)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"stagemesh_{name}", {"replica": "0", **labels})

    assert value("step_tokens_sum", phase="prefill") == 3.0
    assert value("step_tokens_sum", phase="decode") == 2.0
    assert value("step_sequences_sum", phase="decode") == 2.0
    assert value("step_tokens_count", phase="prefill") == 1.0
    assert value("preemptions_total") == 3.0


def test_update_counts_the_growth_of_an_epochs_sums_and_starts_again_with_the_next() -> None:
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(CoordinatorMetrics(registry), 0)
    metrics.update(PolicySnapshot("fixed", 1, decisions=DecisionCounts(cycles=3)))
    metrics.update(PolicySnapshot("fixed", 1, decisions=DecisionCounts(cycles=5)))
    metrics.start_epoch()
    metrics.update(PolicySnapshot("fixed", 1, decisions=DecisionCounts(cycles=2)))
    labels = {"replica": "0", "decision": "cycles"}
    assert registry.get_sample_value("stagemesh_scheduler_decisions_total", labels) == 7


def test_scheduler_state_of_unmeasured_values_has_zeros() -> None:
    state = scheduler_state(PolicySnapshot("fixed", 2, target_seconds=math.inf))
    assert (state.policy, state.steps_in_flight_target) == ("fixed", 2)
    assert (state.target_seconds, state.ratios.throughput) == (0.0, 0.0)
