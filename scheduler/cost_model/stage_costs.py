"""The formula of a stage's compute time, and the longest chunk that fits into a given time.

t = fixed + prompt (if any chunk is longer than a token) + per_token*N
  + beyond_128*max(0, N-128) + beyond_512*max(0, N-512)
  + per_attention*sum(2Lx + x^2) + per_context*sum(context of decodes) + per_sample*(tokens sampled)

with every coefficient at least 0, so t is convex in the rows N: a roofline is a maximum of
lines, nearly flat while memory bandwidth bounds it and steep where arithmetic does. The knots are
at the ridge points of current devices.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.cost_model.feedback import StepWork

KNOTS = (128, 512)


@dataclass(frozen=True, slots=True)
class StageCostModel:
    """Coefficients of one stage in seconds, as in the file's formula."""

    fixed: float = 0.0
    prompt: float = 0.0
    per_token: float = 0.0
    beyond_128: float = 0.0
    beyond_512: float = 0.0
    per_attention: float = 0.0
    per_context: float = 0.0
    per_sample: float = 0.0

    def seconds(self, work: StepWork) -> float:
        """Seconds that this stage takes for `work`."""
        num_tokens = work.num_tokens
        seconds = (
            self.fixed
            + self.per_token * num_tokens
            + self.per_attention * work.prefill_attention
            + self.per_context * work.decode_context
            + self.per_sample * work.num_sampled
        )
        if num_tokens > work.num_decodes:
            seconds += self.prompt
        if num_tokens > KNOTS[0]:
            seconds += self.beyond_128 * (num_tokens - KNOTS[0])
        if num_tokens > KNOTS[1]:
            seconds += self.beyond_512 * (num_tokens - KNOTS[1])
        return seconds

    @property
    def coefficients(self) -> tuple[float, ...]:
        """All coefficients, in order."""
        return (
            self.fixed,
            self.prompt,
            self.per_token,
            self.beyond_128,
            self.beyond_512,
            self.per_attention,
            self.per_context,
            self.per_sample,
        )

    @property
    def last_token(self) -> float:
        """Seconds per additional row of a large microbatch."""
        return self.per_token + self.beyond_128 + self.beyond_512

    def chunk_tokens(self, room_seconds: float, work: StepWork, context: float) -> float:
        """The longest prompt chunk after `context` positions that adds at most `room_seconds`.

        The positive root of the formula, solved piecewise between the knots.
        """
        room = room_seconds
        if work.num_tokens == work.num_decodes:
            room -= self.prompt
        if room <= 0.0:
            return 0.0
        slope, chunk = self.per_token + 2.0 * context * self.per_attention, 0.0
        for knot, bend in ((KNOTS[0], self.beyond_128), (KNOTS[1], self.beyond_512)):
            reach = knot - work.num_tokens - chunk
            if reach > 0.0:
                piece = self._root(room, slope)
                if piece <= reach:
                    return chunk + piece
                room -= slope * reach + self.per_attention * reach * reach
                slope += 2.0 * reach * self.per_attention
                chunk += reach
            slope += bend
        return chunk + self._root(room, slope)

    def scaled(self, factor: float) -> "StageCostModel":
        """All coefficients multiplied by `factor`."""
        return StageCostModel(*[factor * value for value in self.coefficients])

    def _root(self, room: float, slope: float) -> float:
        """x with per_attention*x^2 + slope*x = room."""
        square = math.sqrt(slope * slope + 4.0 * self.per_attention * room)
        return 2.0 * room / (slope + square) if slope + square > 0.0 else math.inf


def sum_costs(stages: Sequence[StageCostModel]) -> StageCostModel:
    """The costs of all stages in sequence."""
    return StageCostModel(*map(sum, zip(*(stage.coefficients for stage in stages), strict=True)))


def features(work: StepWork) -> tuple[float, ...]:
    """The factors of the coefficients, in their order."""
    num_tokens = work.num_tokens
    return (
        1.0,
        1.0 if num_tokens > work.num_decodes else 0.0,
        num_tokens,
        max(0, num_tokens - KNOTS[0]),
        max(0, num_tokens - KNOTS[1]),
        work.prefill_attention,
        work.decode_context,
        work.num_sampled,
    )


LARGE_STEP = StepWork(
    num_tokens=2048,
    num_decodes=256,
    prefill_attention=2**22,
    decode_context=2**18,
    num_sequences=258,
    num_sampled=256,
)
"""A step with much of each kind of work, to weigh coefficients against each other."""
