"""Collects the timings that stages report of each step until the step's result has come."""

from dataclasses import dataclass, field

from scheduler.cost_model.feedback import SentStep, StageRecord


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
