"""Learns a stage's compute time per microbatch from measurements.

Least squares with forgetting, kept as normal equations of relative errors rather than as the
covariance of textbook RLS. A covariance winds up in directions that the load does not excite, and
a period of decodes only would erase the knowledge of prompts. Evidence is therefore kept in strata
by size; each fades only as newer evidence of its stratum comes in, and the prior determines the
rest. Negative coefficients are held at zero. A jump of the residuals scales all costs at once, as
throttling slows all work of a device.
"""

import math
from bisect import bisect_left

import numpy as np

from scheduler.cost_model.feedback import StepWork
from scheduler.cost_model.stage_costs import KNOTS, LARGE_STEP, StageCostModel, features

FORGETTING = 0.96
"""A record's weight halves after 17 further records of its stratum."""
PRIOR_WEIGHT = 0.01
"""Weight of a coefficient's prior, in records."""
KEPT_WEIGHT = 0.2
"""Weight after a jump, when the prior is the rescaled earlier estimate."""
HUBER_DEVIATIONS = 3.0
MIN_DEVIATION = 0.05

JUMP_LOG_RATIO = 0.3
JUMP_RECORDS = 5
"""A device has changed after this many consecutive records with 35% error of one sign."""

NUM_EARLY, NUM_UNSOLVED = 16, 4
"""After `NUM_EARLY` records, costs are fitted again once per `NUM_UNSOLVED` records."""

SAFETY_QUANTILE = 0.9
SAFETY_RATE = 0.02
MAX_SAFETY = 1.5

_SIZES = np.array(features(LARGE_STEP))
_NUM_STRATA = 2 + len(KNOTS)
_TINY = 1e-12


class CostEstimator:
    """Learns one stage's costs from its measured steps; `solve` brings them up to date.

    Internally, coefficients are in seconds of the large step, so that all have one magnitude.
    """

    def __init__(self, prior: StageCostModel) -> None:
        self.costs = prior
        self.error = 1.0
        self.safety = 1.0
        self.num_records = 0
        self.num_resets = 0
        self._deviation = MIN_DEVIATION
        self._jump: list[float] = []
        self._num_unsolved = 0
        self._start_from(prior, PRIOR_WEIGHT)

    def observe(self, work: StepWork, seconds: float) -> None:
        """Adds one measurement; ignores a time that is not positive."""
        if seconds <= 0.0:
            return
        if self.num_records == 0:
            # One record determines the scale better than the prior, which keeps its shape.
            self._rescale(seconds / max(self.costs.seconds(work), _TINY), PRIOR_WEIGHT)
        self.num_records += 1
        predicted = max(self.costs.seconds(work), _TINY)
        ratio = seconds / predicted
        self.error += 0.1 * (min(abs(ratio - 1.0), 2.0) - self.error)
        if self._jumped(math.log(ratio)):
            self._rescale(math.exp(sorted(self._jump)[len(self._jump) // 2]), KEPT_WEIGHT)
            self.num_resets += 1
            self.error = min(self.error, JUMP_LOG_RATIO)
            self._jump.clear()
            return
        step = SAFETY_QUANTILE if ratio > self.safety else SAFETY_QUANTILE - 1.0
        self.safety = min(MAX_SAFETY, max(1.0, self.safety + SAFETY_RATE * step))
        self._accumulate(work, predicted, ratio)

    def solve(self) -> StageCostModel:
        """Returns the costs that fit the evidence best, none of them negative.

        After `NUM_EARLY` records it solves only every few records, because one record changes
        little and solving takes time.
        """
        if self.num_records >= NUM_EARLY and self._num_unsolved < NUM_UNSOLVED:
            return self.costs
        self._num_unsolved = 0
        normal = self._normals.sum(axis=0) + self._prior_normal
        moment = self._moments.sum(axis=0) + self._prior_moment
        free = np.arange(len(_SIZES))
        solution = np.linalg.solve(normal, moment)
        while not (solution >= 0.0).all():
            free = free[solution > 0.0]
            solution = np.linalg.solve(normal[free[:, None], free], moment[free])
        theta = np.zeros(len(_SIZES))
        theta[free] = solution
        self.costs = StageCostModel(*(theta / _SIZES).tolist())
        return self.costs

    def _jumped(self, log_ratio: float) -> bool:
        same_side = not self._jump or self._jump[-1] * log_ratio > 0.0
        if abs(log_ratio) < JUMP_LOG_RATIO or not same_side:
            self._jump.clear()
        if abs(log_ratio) >= JUMP_LOG_RATIO:
            self._jump.append(log_ratio)
        return len(self._jump) >= JUMP_RECORDS

    def _rescale(self, factor: float, prior_weight: float) -> None:
        self.costs = self.costs.scaled(factor)
        self._start_from(self.costs, prior_weight)

    def _start_from(self, prior: StageCostModel, weight: float) -> None:
        """Discards the evidence and sets the prior with a weight in records.

        At the cost of `weight` records a coefficient may change by its own size, or by a tenth of
        a large step if it is close to zero.
        """
        mean = np.array(prior.coefficients) * _SIZES
        large = max(prior.seconds(LARGE_STEP), _TINY)
        # In relative errors, like the evidence: a record of the large step weighs 1 / large^2.
        precision = weight / np.maximum(mean, 0.1 * large) ** 2
        self._prior_normal = np.diag(precision)
        self._prior_moment = precision * mean
        self._normals = np.zeros((_NUM_STRATA, len(mean), len(mean)))
        self._moments = np.zeros((_NUM_STRATA, len(mean)))

    def _accumulate(self, work: StepWork, predicted: float, ratio: float) -> None:
        """Adds one record to its stratum, with a Huber weight."""
        residual = abs(ratio - 1.0)
        limit = HUBER_DEVIATIONS * self._deviation
        weight = 1.0 if residual <= limit else limit / residual
        self._deviation += 0.05 * (min(residual, limit) - self._deviation)
        self._deviation = max(self._deviation, MIN_DEVIATION)
        self._num_unsolved += 1
        row = np.array(features(work)) / (_SIZES * predicted)
        stratum = _stratum(work)
        normal, moment = self._normals[stratum], self._moments[stratum]
        normal *= FORGETTING
        normal += weight * row[:, None] * row
        moment *= FORGETTING
        moment += weight * ratio * row


def _stratum(work: StepWork) -> int:
    """0 for decodes only, else by the number of rows relative to the knots."""
    if work.num_tokens == work.num_decodes:
        return 0
    return 1 + bisect_left(KNOTS, work.num_tokens)
