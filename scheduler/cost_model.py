"""Predicts how long one stage computes a microbatch, and learns it from what was measured.

t = fixed + per_token*N + per_attention*sum(2Lx + x^2) + per_context*sum(context of decodes)
  + per_sequence*S + per_sample*(tokens drawn), every coefficient at least 0.

It is least squares with forgetting, kept as normal equations of relative errors rather than as the
covariance of textbook RLS: a direction that the load does not excite falls back to the prior while
its evidence fades, where a covariance would wind up; and coordinate descent on the equations keeps
coefficients non-negative, which a covariance update cannot. A jump of the residuals scales all
costs at once, because what throttles a device slows everything that it does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.feedback import StepWork

FORGETTING = 0.99
"""A record counts half after 69 further ones: some seconds of serving."""
PRIOR_WEIGHT = 0.05
"""How many records a coefficient's prior counts for."""
KEPT_WEIGHT = 2.0
"""The same after a jump, when the prior is what was learnt before, rescaled."""
HUBER_DEVIATIONS = 3.0
MIN_DEVIATION = 0.03
NUM_SWEEPS = 3

JUMP_LOG_RATIO = 0.3
JUMP_RECORDS = 5
"""So many records in a row off by 35% to the same side mean that the device changed."""

SAFETY_QUANTILE = 0.9
SAFETY_RATE = 0.02
MAX_SAFETY = 1.5

_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Coefficients of one stage in seconds, as in the file's formula."""

    fixed: float
    per_token: float
    per_attention: float
    per_context: float
    per_sequence: float
    per_sample: float

    def seconds(self, work: StepWork) -> float:
        """How long this stage computes `work`."""
        return (
            self.fixed
            + self.per_token * work.num_tokens
            + self.per_attention * work.prefill_attention
            + self.per_context * work.decode_context
            + self.per_sequence * work.num_sequences
            + self.per_sample * work.num_sampled
        )

    def chunk_tokens(self, room_seconds: float, context: int) -> float:
        """The longest prefill chunk after `context` positions that takes no more than the room.

        The positive root of per_attention*x^2 + (per_token + 2*context*per_attention)*x = room.
        """
        room = room_seconds - self.per_sequence
        if room <= 0.0:
            return 0.0
        linear = self.per_token + 2.0 * context * self.per_attention
        quadratic = self.per_attention
        root = math.sqrt(linear * linear + 4.0 * quadratic * room)
        return 2.0 * room / (linear + root) if linear + root > 0.0 else math.inf

    def scaled(self, factor: float) -> "StageCosts":
        """All of it slower by `factor`."""
        return _costs([factor * value for value in _coefficients(self)])


def roofline(
    weights_bytes: float, bytes_per_second: float, flops_per_second: float, bytes_per_weight: float
) -> StageCosts:
    """A stage's costs before anything is measured: it reads all weights, then multiplies.

    Reading bounds a step from below, and a token costs two operations per weight (Williams et al.,
    Roofline, CACM 2009). The other coefficients are shares of these that fit common decoders.
    """
    fixed = weights_bytes / bytes_per_second
    per_token = 2.0 * weights_bytes / bytes_per_weight / flops_per_second
    return StageCosts(
        fixed=fixed,
        per_token=per_token,
        per_attention=per_token / 2**15,
        per_context=fixed / 2**17,
        per_sequence=fixed / 2**9,
        per_sample=fixed / 2**9,
    )


class CostEstimator:
    """Learns one stage's costs from its measured steps."""

    def __init__(self, prior: StageCosts) -> None:
        self.costs = prior
        self.error = 1.0
        self.safety = 1.0
        self.num_records = 0
        self.num_resets = 0
        self._deviation = MIN_DEVIATION
        self._jump: list[float] = []
        self._start_from(prior, PRIOR_WEIGHT)

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learns from one step; a time that is not positive says nothing."""
        if seconds <= 0.0:
            return
        if self.num_records == 0:
            # One record fixes the scale better than any guess; the prior is kept as a shape.
            self._rescale(seconds / max(self.costs.seconds(work), _TINY), PRIOR_WEIGHT)
        self.num_records += 1
        predicted = max(self.costs.seconds(work), _TINY)
        ratio = seconds / predicted
        self.error += 0.1 * (min(abs(ratio - 1.0), 2.0) - self.error)
        if self._jumped(math.log(ratio)):
            self._rescale(math.exp(sorted(self._jump)[len(self._jump) // 2]), KEPT_WEIGHT)
            self.num_resets += 1
            self._jump.clear()
            return
        step = SAFETY_QUANTILE if ratio > self.safety else SAFETY_QUANTILE - 1.0
        self.safety = min(MAX_SAFETY, max(1.0, self.safety + SAFETY_RATE * step))
        self._learn(work, predicted, ratio)

    def _jumped(self, log_ratio: float) -> bool:
        same_side = not self._jump or self._jump[-1] * log_ratio > 0.0
        if abs(log_ratio) < JUMP_LOG_RATIO or not same_side:
            self._jump.clear()
        if abs(log_ratio) >= JUMP_LOG_RATIO:
            self._jump.append(log_ratio)
        return len(self._jump) >= JUMP_RECORDS

    def _rescale(self, factor: float, prior_weight: float) -> None:
        self.costs = self.costs.scaled(factor)
        self.error = 1.0 if self.num_records == 0 else min(self.error, 0.2)
        self._start_from(self.costs, prior_weight)

    def _start_from(self, prior: StageCosts, weight: float) -> None:
        """Forgets the evidence; from here on the prior is `prior`, of so much weight."""
        mean = list(_coefficients(prior))
        # How far a coefficient may move for the price of `weight` records: its own size, or what
        # makes a tenth of the fixed cost in a large step, for those that are nearly nothing.
        large_step = (1.0, 1024.0, 2.0**21, 2.0**18, 256.0, 256.0)
        spread = [
            max(value, 0.1 * mean[0] / size, _TINY / size)
            for value, size in zip(mean, large_step, strict=True)
        ]
        self._prior_precision = [weight / (value * value) for value in spread]
        self._prior_mean = mean
        self._normal = [[0.0] * len(mean) for _ in mean]
        self._moment = [0.0] * len(mean)

    def _learn(self, work: StepWork, predicted: float, ratio: float) -> None:
        residual = abs(ratio - 1.0)
        limit = HUBER_DEVIATIONS * self._deviation
        weight = 1.0 if residual <= limit else limit / residual
        self._deviation += 0.05 * (min(residual, limit) - self._deviation)
        self._deviation = max(self._deviation, MIN_DEVIATION)
        features = [value / predicted for value in _features(work)]
        for row, moment in enumerate(features):
            weighted = weight * moment
            self._moment[row] = FORGETTING * self._moment[row] + weighted * ratio
            line = self._normal[row]
            for column, value in enumerate(features):
                line[column] = FORGETTING * line[column] + weighted * value
        self._solve()

    def _solve(self) -> None:
        """Some sweeps of non-negative coordinate descent, from where the last ones ended."""
        theta = list(_coefficients(self.costs))
        for _ in range(NUM_SWEEPS):
            for index, line in enumerate(self._normal):
                precision = self._prior_precision[index]
                slope = self._moment[index] + precision * self._prior_mean[index]
                for column, value in enumerate(line):
                    slope -= value * theta[column]
                slope += line[index] * theta[index]
                theta[index] = max(0.0, slope / (line[index] + precision))
        self.costs = _costs(theta)


def _features(work: StepWork) -> tuple[float, ...]:
    return (
        1.0,
        work.num_tokens,
        work.prefill_attention,
        work.decode_context,
        work.num_sequences,
        work.num_sampled,
    )


def _coefficients(costs: StageCosts) -> tuple[float, ...]:
    return (
        costs.fixed,
        costs.per_token,
        costs.per_attention,
        costs.per_context,
        costs.per_sequence,
        costs.per_sample,
    )


def _costs(coefficients: Sequence[float]) -> StageCosts:
    return StageCosts(*coefficients)
