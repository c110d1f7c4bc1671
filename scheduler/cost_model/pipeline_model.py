"""What is learnt of a whole pipeline: each stage's costs, the way around, and errors.

It turns feedback into predictions; what to do with them is the policy's.
"""

from collections.abc import Iterable, Sequence

from scheduler.cost_model.estimator import CostEstimator
from scheduler.cost_model.feedback import SentStep, StageRecord
from scheduler.cost_model.stage_costs import StageCostModel
from scheduler.observability.snapshot import StageEstimate

SMOOTHING = 0.1
"""Weight of the newest value in the running means."""


MEAN_ROOT = 4.0
"""Root of the number of steps that a time per token is a mean over, at least."""


class _Journey:
    """What is known of one step's trip so far."""

    def __init__(self) -> None:
        self.stages: set[int] = set()
        self.inside_seconds = 0.0  # queued or computed in the stages that have told
        self.slowest_seconds = 0.0
        self.planned_seconds = 0.0


class PipelineModel:
    """One cost estimator per stage that has told something; before the first, the priors stand."""

    def __init__(self, priors: Sequence[StageCostModel]) -> None:
        """`priors` are by stage; the last one stands for all those behind it, too."""
        self._priors = priors
        self._estimators: list[CostEstimator] = []
        self._journeys: dict[int, _Journey] = {}
        self.overhead_seconds = 0.0
        self.planned_seconds = 0.0
        self.actual_seconds = 0.0

    def costs(self) -> list[StageCostModel]:
        """Each stage's costs by all that was measured, with some safety.

        The 0.9 quantile of single steps would be too careful for a time per token, which is a mean
        over many: the margin shrinks with the root of their number.
        """
        if not self._estimators:
            return list(self._priors)
        return [
            each.solve().scaled(1.0 + (each.safety - 1.0) / MEAN_ROOT) for each in self._estimators
        ]

    @property
    def error(self) -> float:
        """Mean relative error of the worst stage; 1 before anything is measured."""
        return max((each.error for each in self._estimators), default=1.0)

    @property
    def num_records(self) -> int:
        """Steps that every stage has told of."""
        return min((each.num_records for each in self._estimators), default=0)

    def stages(self) -> Iterable[StageEstimate]:
        """What each stage's estimator thinks."""
        for each in self._estimators:
            yield StageEstimate(
                each.costs, each.error, each.safety, each.num_records, each.num_resets
            )

    def observe(self, record: StageRecord, sent: SentStep) -> None:
        """Learns from one stage's times of one step."""
        while len(self._estimators) <= record.stage:
            prior = self._priors[min(len(self._estimators), len(self._priors) - 1)]
            self._estimators.append(CostEstimator(prior))
        timing = record.timing
        journey = self._journeys.get(record.step)
        if journey is None:
            journey = self._journeys[record.step] = _Journey()
        predicted = self._estimators[record.stage].costs.seconds(sent.work)
        journey.stages.add(record.stage)
        journey.inside_seconds += timing.queue_seconds + timing.compute_seconds
        journey.slowest_seconds = max(journey.slowest_seconds, timing.compute_seconds)
        journey.planned_seconds = max(journey.planned_seconds, predicted)
        if sent.work.num_tokens > 0:
            self._estimators[record.stage].observe(sent.work, timing.compute_seconds)

    def complete(self, sent: SentStep, now: float) -> None:
        """Learns from a step's round trip what it takes besides queues and compute."""
        journey = self._journeys.pop(sent.number, None)
        for number in [number for number in self._journeys if number < sent.number]:
            del self._journeys[number]
        if journey is None or len(journey.stages) < len(self._estimators):
            return  # a stage tells later; there will be other steps
        is_first = self.actual_seconds == 0.0
        weight = 1.0 if is_first else SMOOTHING
        overhead = max(0.0, now - sent.sent_at - journey.inside_seconds)
        self.overhead_seconds += weight * (overhead - self.overhead_seconds)
        self.planned_seconds += weight * (journey.planned_seconds - self.planned_seconds)
        self.actual_seconds += weight * (journey.slowest_seconds - self.actual_seconds)
