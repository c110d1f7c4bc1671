"""Owns what the scheduler thinks, for Prometheus and for operators: one snapshot, both ways out."""

import math
from dataclasses import asdict

from protos import mesh_pb2
from runtime.metrics.declarations import CoordinatorMetrics
from scheduler import SchedulerInsight


class SchedulerTelemetry:
    """One replica's scheduler on the metrics; told a snapshot whenever somebody will read them.

    Sums of an epoch become counters here, so it must be told once more before an epoch's sums go.
    """

    def __init__(self, metrics: CoordinatorMetrics, replica: int) -> None:
        self._metrics = metrics
        self._replica = str(replica)
        self._counted: dict[tuple[str, str], float] = {}

    def start_epoch(self) -> None:
        """Sums begin at zero again."""
        self._counted.clear()

    def update(self, insight: SchedulerInsight) -> None:
        """Sets every gauge, and adds to the counters what is new."""
        metrics, replica = self._metrics, self._replica
        gauges = {
            metrics.scheduler_steps_in_flight_target: insight.num_steps_in_flight,
            metrics.scheduler_target_seconds: insight.target_seconds,
            metrics.scheduler_target_tokens: insight.target_tokens,
            metrics.scheduler_planned_seconds: insight.planned_seconds,
            metrics.scheduler_actual_seconds: insight.actual_seconds,
            metrics.scheduler_overhead_seconds: insight.overhead_seconds,
            metrics.scheduler_prediction_error: insight.error,
            metrics.scheduler_warmup: insight.warmup,
            metrics.scheduler_fallback: insight.fallback,
        }
        for gauge, value in gauges.items():
            gauge.labels(replica).set(value)
        for limit, ratio in asdict(insight.ratios).items():
            metrics.scheduler_limit_ratio.labels(replica, limit).set(ratio)
        for number, stage in enumerate(insight.stages):
            labels = (replica, str(number))
            metrics.scheduler_stage_error.labels(*labels).set(stage.error)
            metrics.scheduler_stage_resets.labels(*labels).set(stage.num_resets)
            for name, value in asdict(stage.costs).items():
                metrics.scheduler_stage_cost.labels(*labels, name).set(value)
        for cause, seconds in asdict(insight.bubbles).items():
            new = self._new("bubble", cause, seconds)
            metrics.scheduler_bubble_seconds.labels(replica, cause).inc(new)
        for decision, count in asdict(insight.decisions).items():
            new = self._new("decision", decision, count)
            metrics.scheduler_decisions.labels(replica, decision).inc(new)

    def _new(self, kind: str, name: str, total: float) -> float:
        counted = self._counted.get((kind, name), 0.0)
        self._counted[kind, name] = total
        return max(0.0, total - counted)


def scheduler_state(insight: SchedulerInsight) -> mesh_pb2.SchedulerState:
    """The same on the wire; 0 stands for what is unbounded or was not measured."""
    return mesh_pb2.SchedulerState(
        policy=insight.policy,
        steps_in_flight_target=insight.num_steps_in_flight,
        target_seconds=_finite(insight.target_seconds),
        target_tokens=insight.target_tokens,
        planned_seconds=insight.planned_seconds,
        actual_seconds=insight.actual_seconds,
        overhead_seconds=insight.overhead_seconds,
        error=insight.error,
        warmup=insight.warmup,
        fallback=insight.fallback,
        stages=[
            mesh_pb2.StageCostState(
                **asdict(stage.costs),
                error=stage.error,
                safety=stage.safety,
                num_records=stage.num_records,
                num_resets=stage.num_resets,
            )
            for stage in insight.stages
        ],
        bubbles=mesh_pb2.BubbleState(**asdict(insight.bubbles)),
        decisions=mesh_pb2.DecisionState(**asdict(insight.decisions)),
        ratios=mesh_pb2.LimitRatios(
            **{name: _finite(value) for name, value in asdict(insight.ratios).items()}
        ),
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0
