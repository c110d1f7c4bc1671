"""The feedback from which policies learn: a step's work, its sending, and stages' timings."""

from dataclasses import dataclass, field
from typing import NamedTuple

from runtime.protocol.step import StageTiming


class StepWork(NamedTuple):
    """The work of one microbatch; a tuple for speed, because planning compares many.

    A chunk of one token counts as a decode: it costs the same, whatever its token's origin.
    `prefill_attention` is the sum of 2Lx + x^2 over longer chunks (L positions of context, x
    tokens), which is twice the number of attention pairs; `decode_context` is the sum of the
    positions before each decode.
    """

    num_tokens: int = 0
    num_decodes: int = 0
    prefill_attention: int = 0
    decode_context: int = 0
    num_sequences: int = 0
    num_sampled: int = 0

    @property
    def has_prompts(self) -> bool:
        """Whether any chunk is longer than one token."""
        return self.num_tokens > self.num_decodes


@dataclass(frozen=True, slots=True)
class SentStep:
    """A step that was sent at `sent_at` seconds.

    `num_others` steps were in flight then; `is_full` is set if the policy allowed no more.
    """

    number: int
    work: StepWork
    sent_at: float
    num_others: int
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage's timing of one step."""

    step: int
    stage: int
    timing: StageTiming


@dataclass(slots=True)
class StepTimings:
    """The timings of one step that stages have reported so far, in seconds.

    `compute` and `idle` are by stage, `inside_seconds` sums queues and compute of all of them.
    `predicted_seconds` is the predicted compute time of the slowest stage. `done_at` is set when
    the step's result has come.
    """

    sent: SentStep
    compute: dict[int, float] = field(default_factory=dict)
    idle: dict[int, float] = field(default_factory=dict)
    inside_seconds: float = 0.0
    queue_seconds: float = 0.0
    predicted_seconds: float = 0.0
    done_at: float = 0.0

    def add(self, record: StageRecord) -> None:
        """Adds one stage's timing."""
        timing = record.timing
        self.compute[record.stage] = timing.compute_seconds
        self.idle[record.stage] = timing.idle_seconds
        self.inside_seconds += timing.queue_seconds + timing.compute_seconds
        self.queue_seconds += timing.queue_seconds

    @property
    def round_trip_seconds(self) -> float:
        """From sending to the result, without the time in queues of the stages."""
        return self.done_at - self.sent.sent_at - self.queue_seconds


class TimingCollector:
    """The timings of steps in flight, by step number."""

    def __init__(self) -> None:
        self._steps: dict[int, StepTimings] = {}

    def of(self, sent: SentStep) -> StepTimings:
        """The timings of a step, empty at first."""
        return self._steps.setdefault(sent.number, StepTimings(sent))

    def complete(self, sent: SentStep, num_stages: int, now: float) -> StepTimings | None:
        """Removes and returns a step's timings; None unless all `num_stages` stages reported.

        Earlier steps are dropped: steps complete in order, so their results have come.
        """
        timings = self._steps.pop(sent.number, None)
        for number in [number for number in self._steps if number < sent.number]:
            del self._steps[number]
        if timings is None or len(timings.compute) < num_stages:
            return None
        timings.done_at = now
        return timings
