"""The state of a policy and a pipeline's efficiency, as one frozen snapshot for metrics."""

import math
from dataclasses import dataclass

from scheduler.cost_model.pipeline_model import StageEstimate


@dataclass(frozen=True, slots=True)
class BubbleSeconds:
    """Idle seconds by cause, summed over all stages.

    `starved`: no work to send; `fill`: the pipeline was empty and the work had to reach the stage;
    `imbalance`: another stage takes longer; `exposed_send`: compute did not hide the send to the
    stage; `coordinator`: the rest, the handling of results and steps by the coordinator.
    """

    starved: float = 0.0
    fill: float = 0.0
    imbalance: float = 0.0
    exposed_send: float = 0.0
    coordinator: float = 0.0

    @property
    def total(self) -> float:
        """All idle seconds."""
        return self.starved + self.fill + self.imbalance + self.exposed_send + self.coordinator


@dataclass(frozen=True, slots=True)
class EfficiencyRatios:
    """Ratios of measurements to theoretical limits, each in (0, 1]; above 1 a constant is wrong.

    `throughput`: the slowest stage's busy share of the time, 1 if it is never idle. `occupancy`:
    the same over M*t_b/Lambda, the maximum with M steps in flight (Little's law).
    `tpot`: a decode's round trip in an empty pipeline over the median time per token. `ttft`: the
    median over prompts of (sqrt(A) + sqrt((P-1)*a0))^2 + P*link over the measured time. NaN if
    nothing was measured.
    """

    throughput: float = math.nan
    occupancy: float = math.nan
    tpot: float = math.nan
    ttft: float = math.nan


@dataclass(frozen=True, slots=True)
class DecisionCounts:
    """Counts of a policy's decisions since the epoch began.

    Planned cycles, increases and decreases of the steps in flight, and fallbacks to `throttle`.
    """

    cycles: int = 0
    more_in_flight: int = 0
    fewer_in_flight: int = 0
    fallbacks: int = 0


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """A policy's state; open-loop policies report only their name and limit.

    `planned_seconds` and `actual_seconds` are recent means of a step's time on the slowest stage,
    as predicted when it was sent and as measured. `overhead_seconds` is a step's round trip
    without queues and compute. `fallback` is set while predictions are too inaccurate, `warmup`
    until they are accurate. `bubbles` and `ratios` are measured with every policy.
    """

    policy: str
    num_steps_in_flight: int
    target_seconds: float = 0.0
    target_tokens: int = 0
    planned_seconds: float = 0.0
    actual_seconds: float = 0.0
    overhead_seconds: float = 0.0
    error: float = 0.0
    warmup: bool = False
    fallback: bool = False
    stages: tuple[StageEstimate, ...] = ()
    decisions: DecisionCounts = DecisionCounts()
    bubbles: BubbleSeconds = BubbleSeconds()
    ratios: EfficiencyRatios = EfficiencyRatios()
