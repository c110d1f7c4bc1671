"""What became of requests and steps in a replay, and which targets they met. Only records."""

from dataclasses import dataclass

from scheduler import StepWork
from simulator.model.pipeline import Journey
from simulator.workload.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request's end; without times it was refused. Seconds on the simulation's clock.

    `num_cached_tokens` of the prompt were in the prefix cache when it first got a slot.
    """

    request: TraceRequest
    first_token_at: float | None
    finished_at: float | None
    num_tokens: int
    num_cached_tokens: int = 0

    @property
    def ttft_seconds(self) -> float | None:
        """From arrival to the first token."""
        return None if self.first_token_at is None else self.first_token_at - self.request.arrival

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time between tokens; None where there is only one."""
        if self.first_token_at is None or self.finished_at is None or self.num_tokens < 2:
            return None
        return (self.finished_at - self.first_token_at) / (self.num_tokens - 1)


@dataclass(frozen=True, slots=True)
class Targets:
    """What a request is promised, in seconds."""

    ttft_seconds: float = 2.0
    tpot_seconds: float = 0.1

    def met(self, outcome: Outcome) -> bool:
        """Whether both were kept; a refused request kept none."""
        ttft, tpot = outcome.ttft_seconds, outcome.tpot_seconds
        if ttft is None:
            return False
        return ttft <= self.ttft_seconds and (tpot is None or tpot <= self.tpot_seconds)


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One step: what it carried, when it left, and where it was when."""

    number: int
    work: StepWork
    sent_at: float
    journey: Journey
