"""What a policy thinks, as one frozen snapshot for people and metrics."""

from dataclasses import dataclass

from scheduler.stage_costs import StageCosts


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
class StageInsight:
    """One stage as its cost model sees it.

    `safety` is the 0.9 quantile of measured over predicted seconds, `error` the recent mean of
    their relative difference, `num_resets` how often the residuals jumped.
    """

    costs: StageCosts
    error: float
    safety: float
    num_records: int
    num_resets: int


@dataclass(frozen=True, slots=True)
class SchedulerInsight:
    """What a policy steers by; open-loop policies know only their name and their limits.

    `planned_seconds` and `actual_seconds` are recent means of a step's time on the slowest stage,
    as predicted when it was sent and as measured. `overhead_seconds` is what a step's round trip
    takes besides queues and compute. `fallback` says that the predictions are not trusted, `warmup`
    that they are not yet.
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
    stages: tuple[StageInsight, ...] = ()
    bubbles: BubbleSeconds = BubbleSeconds()
