"""Records of a replay: the outcome of each request, the times of each step, latency targets."""

from dataclasses import dataclass

from scheduler import StepWork
from simulator.model.pipeline import StepTrace
from simulator.workload.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The outcome of one request, in simulated seconds; a rejected request has no times.

    `num_cached_tokens` is the part of the prompt that the prefix cache held at its first slot.
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
        """Mean time between tokens; None with fewer than two."""
        if self.first_token_at is None or self.finished_at is None or self.num_tokens < 2:
            return None
        return (self.finished_at - self.first_token_at) / (self.num_tokens - 1)


@dataclass(frozen=True, slots=True)
class Targets:
    """Latency targets of a request, in seconds."""

    ttft_seconds: float = 2.0
    tpot_seconds: float = 0.1

    def met(self, outcome: RequestOutcome) -> bool:
        """Whether both targets are met; a rejected request meets none."""
        ttft, tpot = outcome.ttft_seconds, outcome.tpot_seconds
        if ttft is None:
            return False
        return ttft <= self.ttft_seconds and (tpot is None or tpot <= self.tpot_seconds)


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One step: its work, when it was sent, and when each stage computed it."""

    number: int
    work: StepWork
    sent_at: float
    step_trace: StepTrace
