"""Exports the scheduler: its steps and snapshots as metrics, its snapshot as a proto message."""

import math
from dataclasses import asdict
from typing import Final

from protos import mesh_pb2
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.step import Step
from scheduler import PolicySnapshot

# A prompt chunk of one token counts as a decode.
_PHASES: Final = ("prefill", "decode")


class StepMetrics:
    """Metrics of the steps of one replica: tokens, sequences, preemptions, prefix cache hits."""

    def __init__(self, metrics: CoordinatorMetrics, replica: int) -> None:
        self._tokens = [metrics.step_tokens.labels(str(replica), phase) for phase in _PHASES]
        self._sequences = [metrics.step_sequences.labels(str(replica), phase) for phase in _PHASES]
        self._preemptions = metrics.preemptions.labels(str(replica))
        self._num_preemptions = 0
        self._queried_tokens = metrics.prefix_queried_tokens.labels(str(replica))
        self._hit_tokens = metrics.prefix_hit_tokens.labels(str(replica))
        self._num_queried_tokens = self._num_hit_tokens = 0

    def observe(self, step: Step, num_preemptions: int) -> None:
        """Observes one step; `num_preemptions` is the sum since the start."""
        self._preemptions.inc(num_preemptions - self._num_preemptions)
        self._num_preemptions = num_preemptions
        lengths = [len(chunk.token_ids) for chunk in step.chunks]
        num_decodes = lengths.count(1)
        num_tokens = (sum(lengths) - num_decodes, num_decodes)
        num_sequences = (len(lengths) - num_decodes, num_decodes)
        for phase, _ in enumerate(_PHASES):
            if num_sequences[phase]:
                self._tokens[phase].observe(num_tokens[phase])
                self._sequences[phase].observe(num_sequences[phase])

    def observe_prefix_cache(self, num_queried_tokens: int, num_hit_tokens: int) -> None:
        """Counts prefix cache lookups; both arguments are sums since the start."""
        self._queried_tokens.inc(num_queried_tokens - self._num_queried_tokens)
        self._hit_tokens.inc(num_hit_tokens - self._num_hit_tokens)
        self._num_queried_tokens, self._num_hit_tokens = num_queried_tokens, num_hit_tokens


class SchedulerMetrics:
    """Metrics of one replica's scheduler, set from its snapshot when the metrics are read.

    Counters grow by the difference of an epoch's sums, so `update` must run before these are reset.
    """

    def __init__(self, metrics: CoordinatorMetrics, replica: int) -> None:
        self._metrics = metrics
        self._replica = str(replica)
        self._counted: dict[tuple[str, str], float] = {}

    def start_epoch(self) -> None:
        """Expects sums that start at zero."""
        self._counted.clear()

    def update(self, snapshot: PolicySnapshot) -> None:
        """Sets every gauge and increases the counters by what is new."""
        metrics, replica = self._metrics, self._replica
        gauges = {
            metrics.scheduler_steps_in_flight_target: snapshot.num_steps_in_flight,
            metrics.scheduler_target_seconds: snapshot.target_seconds,
            metrics.scheduler_target_tokens: snapshot.target_tokens,
            metrics.scheduler_planned_seconds: snapshot.planned_seconds,
            metrics.scheduler_actual_seconds: snapshot.actual_seconds,
            metrics.scheduler_overhead_seconds: snapshot.overhead_seconds,
            metrics.scheduler_prediction_error: snapshot.error,
            metrics.scheduler_warmup: snapshot.warmup,
            metrics.scheduler_fallback: snapshot.fallback,
        }
        for gauge, value in gauges.items():
            gauge.labels(replica).set(value)
        for limit, ratio in asdict(snapshot.ratios).items():
            metrics.scheduler_limit_ratio.labels(replica, limit).set(ratio)
        for number, stage in enumerate(snapshot.stages):
            labels = (replica, str(number))
            metrics.scheduler_stage_error.labels(*labels).set(stage.error)
            metrics.scheduler_stage_resets.labels(*labels).set(stage.num_resets)
            for name, value in asdict(stage.costs).items():
                metrics.scheduler_stage_cost.labels(*labels, name).set(value)
        for cause, seconds in asdict(snapshot.bubbles).items():
            new = self._new("bubble", cause, seconds)
            metrics.scheduler_bubble_seconds.labels(replica, cause).inc(new)
        for decision, count in asdict(snapshot.decisions).items():
            new = self._new("decision", decision, count)
            metrics.scheduler_decisions.labels(replica, decision).inc(new)

    def _new(self, kind: str, name: str, total: float) -> float:
        counted = self._counted.get((kind, name), 0.0)
        self._counted[kind, name] = total
        return max(0.0, total - counted)


def scheduler_state(snapshot: PolicySnapshot) -> mesh_pb2.SchedulerState:
    """The snapshot as a message; 0 stands for unbounded and for not measured."""
    return mesh_pb2.SchedulerState(
        policy=snapshot.policy,
        steps_in_flight_target=snapshot.num_steps_in_flight,
        target_seconds=_finite(snapshot.target_seconds),
        target_tokens=snapshot.target_tokens,
        planned_seconds=snapshot.planned_seconds,
        actual_seconds=snapshot.actual_seconds,
        overhead_seconds=snapshot.overhead_seconds,
        error=snapshot.error,
        warmup=snapshot.warmup,
        fallback=snapshot.fallback,
        stages=[
            mesh_pb2.StageCostState(
                **asdict(stage.costs),
                error=stage.error,
                safety=stage.safety,
                num_records=stage.num_records,
                num_resets=stage.num_resets,
            )
            for stage in snapshot.stages
        ],
        bubbles=mesh_pb2.BubbleState(**asdict(snapshot.bubbles)),
        decisions=mesh_pb2.DecisionState(**asdict(snapshot.decisions)),
        ratios=mesh_pb2.LimitRatios(
            **{name: _finite(value) for name, value in asdict(snapshot.ratios).items()}
        ),
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0
