"""What a policy thinks, as one frozen snapshot for people and metrics."""

import math
from dataclasses import dataclass

from scheduler.cost_model.pipeline_model import StageEstimate


@dataclass(frozen=True, slots=True)
class BubbleSeconds:
    """Seconds that stages stood idle, by cause, summed over all stages.

    `starved`: there was no work to send; `fill`: the pipeline was empty and the work had to reach
    the stage; `imbalance`: another stage takes longer; `exposed_send`: the hop before the stage was
    not hidden behind compute; `coordinator`: the rest, the way of results and steps through it.
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
    """Measured over what is possible at best, each in (0, 1]; above 1 a constant is wrong.

    `throughput`: the slowest stage's busy share of the time, 1 where it never stands. `occupancy`:
    the same over M*t_b/Lambda, the most that M steps in flight can keep it busy (Little's law).
    `tpot`: a decode's way around an empty pipeline over the median time per token. `ttft`: the
    median over prompts of (sqrt(A) + sqrt((P-1)*a0))^2 + P*link over the measured time. NaN where
    nothing was measured.
    """

    throughput: float = math.nan
    occupancy: float = math.nan
    tpot: float = math.nan
    ttft: float = math.nan


@dataclass(frozen=True, slots=True)
class DecisionCounts:
    """How often a policy decided what, since the epoch began.

    `cycles` were planned; steps in flight became more or fewer; predictions lost its trust.
    """

    cycles: int = 0
    more_in_flight: int = 0
    fewer_in_flight: int = 0
    fallbacks: int = 0


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """What a policy steers by; open-loop policies know only their name and their limits.

    `planned_seconds` and `actual_seconds` are recent means of a step's time on the slowest stage,
    as predicted when it was sent and as measured. `overhead_seconds` is what a step's round trip
    takes besides queues and compute. `fallback` says that the predictions are not trusted, `warmup`
    that they are not yet. `bubbles` and `ratios` are measured, whatever the policy.
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
