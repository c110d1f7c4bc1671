"""Learns the costs of a whole pipeline: one estimator per stage, round-trip overhead, errors.

It turns feedback into predictions; policies decide what to do with them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.cost_model.estimator import CostEstimator
from scheduler.cost_model.feedback import SentStep, StageRecord, TimingCollector
from scheduler.cost_model.stage_costs import StageCostModel

SMOOTHING = 0.1
"""Weight of the newest value in the running means."""

SQRT_MEAN_STEPS = 4.0
"""Square root of the least number of steps over which a time per token is a mean."""


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """The state of one stage's cost estimator.

    `safety` is the 0.9 quantile of measured over predicted seconds, `error` the recent mean of
    their relative difference, `num_resets` the number of jumps of the residuals.
    """

    costs: StageCostModel
    error: float
    safety: float
    num_records: int
    num_resets: int


class PipelineModel:
    """One cost estimator per stage that has reported; priors apply before the first report."""

    def __init__(self, priors: Sequence[StageCostModel]) -> None:
        """`priors` are by stage; the last one also applies to all later stages."""
        self._priors = priors
        self._estimators: list[CostEstimator] = []
        self._timings = TimingCollector()
        self.overhead_seconds = 0.0
        self.planned_seconds = 0.0
        self.actual_seconds = 0.0

    def costs(self) -> list[StageCostModel]:
        """Each stage's costs by all measurements, with a safety margin.

        The 0.9 quantile of single steps is too conservative for a time per token, which is a mean
        over many steps: the margin shrinks with the square root of their number.
        """
        if not self._estimators:
            return list(self._priors)
        return [
            each.solve().scaled(1.0 + (each.safety - 1.0) / SQRT_MEAN_STEPS)
            for each in self._estimators
        ]

    @property
    def error(self) -> float:
        """Mean relative error of the worst stage; 1 before the first measurement."""
        return max((each.error for each in self._estimators), default=1.0)

    @property
    def num_records(self) -> int:
        """Number of steps that every stage has reported."""
        return min((each.num_records for each in self._estimators), default=0)

    def stages(self) -> Iterable[StageEstimate]:
        """The state of each stage's estimator."""
        for each in self._estimators:
            yield StageEstimate(
                each.costs, each.error, each.safety, each.num_records, each.num_resets
            )

    def observe(self, record: StageRecord, sent: SentStep) -> None:
        """Learns from one stage's timing of one step."""
        while len(self._estimators) <= record.stage:
            prior = self._priors[min(len(self._estimators), len(self._priors) - 1)]
            self._estimators.append(CostEstimator(prior))
        estimator, timings = self._estimators[record.stage], self._timings.of(sent)
        timings.add(record)
        predicted = estimator.costs.seconds(sent.work)
        timings.predicted_seconds = max(timings.predicted_seconds, predicted)
        if sent.work.num_tokens > 0:
            estimator.observe(sent.work, record.timing.compute_seconds)

    def complete(self, sent: SentStep, now: float) -> None:
        """Learns from a step's round trip the overhead beyond queues and compute."""
        timings = self._timings.complete(sent, len(self._estimators), now)
        if timings is None:
            return  # some stage reports later; other steps follow
        slowest_seconds = max(0.0, *timings.compute.values())
        is_first = self.actual_seconds == 0.0
        weight = 1.0 if is_first else SMOOTHING
        overhead = max(0.0, now - sent.sent_at - timings.inside_seconds)
        self.overhead_seconds += weight * (overhead - self.overhead_seconds)
        self.planned_seconds += weight * (timings.predicted_seconds - self.planned_seconds)
        self.actual_seconds += weight * (slowest_seconds - self.actual_seconds)
