"""Predicted costs that all plans of one cycle share, each computed once on demand.

Nothing here chooses a plan.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scheduler.cost_model.feedback import StepWork
from scheduler.cost_model.stage_costs import StageCostModel, sum_costs
from scheduler.policies.adaptive.targets import CycleLoad

_LONG_CHUNK_TOKENS = 512
"""Prompt tokens by which the slowest stage is found when a chunk's length is calculated."""


class PricedWork(NamedTuple):
    """One microbatch's work, with each stage's seconds for it."""

    work: StepWork
    stage_seconds: Sequence[float]


class DecodeShare(NamedTuple):
    """One microbatch's share of the decodes; a cycle without prompts takes `seconds`."""

    work: StepWork
    stage_seconds: Sequence[float]
    seconds: float


class CycleBasis:
    """The predicted costs of one cycle's work."""

    def __init__(
        self, stages: Sequence[StageCostModel], overhead_seconds: float, load: CycleLoad
    ) -> None:
        """`overhead_seconds` is a round trip without compute."""
        self.stages = stages
        self.overhead_seconds = overhead_seconds
        self.load = load
        self.around = sum_costs(stages)
        # By number of microbatches.
        self._decode_shares: dict[int, DecodeShare] = {}
        # By number of microbatches and tokens of the chunk.
        self._mixed: dict[tuple[int, int], PricedWork] = {}
        self._makespan_optimal_chunks: dict[int, float] = {}

    def decode_share(self, num_in_flight: int) -> DecodeShare:
        """An even share of the decodes with `num_in_flight` microbatches."""
        share = self._decode_shares.get(num_in_flight)
        if share is None:
            work = self.load.decodes(-(-self.load.num_decodes // num_in_flight))
            times = [stage.seconds(work) for stage in self.stages]
            cycle = max(num_in_flight * max(times), sum(times) + self.overhead_seconds)
            share = self._decode_shares[num_in_flight] = DecodeShare(work, times, cycle)
        return share

    def with_chunk(self, num_in_flight: int, num_tokens: int) -> PricedWork:
        """An even share of the decodes with `num_tokens` prompt tokens."""
        mixed = self._mixed.get((num_in_flight, num_tokens))
        if mixed is None:
            work = self._add_chunk(self.decode_share(num_in_flight).work, num_tokens)
            mixed = PricedWork(work, [stage.seconds(work) for stage in self.stages])
            self._mixed[num_in_flight, num_tokens] = mixed
        return mixed

    def least_seconds(self) -> float:
        """The shortest cycle without prompts, with up to two microbatches per stage."""
        numbers = range(1, 2 * len(self.stages) + 1)
        return min(self.decode_share(number).seconds for number in numbers)

    def makespan_optimal_chunk(self, num_in_flight: int) -> float:
        """The chunk length that minimises the makespan of the waiting prompts.

        With A seconds of work in pieces of fixed cost a over P stages, the optimal piece takes
        a + sqrt(A*a/(P-1)).
        """
        chunk = self._makespan_optimal_chunks.get(num_in_flight)
        if chunk is None:
            chunk = self._find_makespan_optimal_chunk(self.decode_share(num_in_flight).work)
            self._makespan_optimal_chunks[num_in_flight] = chunk
        return chunk

    def _find_makespan_optimal_chunk(self, work: StepWork) -> float:
        load = self.load
        long = self._add_chunk(work, _LONG_CHUNK_TOKENS)
        slowest = max(self.stages, key=lambda stage: stage.seconds(long))
        backlog = load.num_prompt_tokens * (
            slowest.last_token + 2.0 * load.prompt_context * slowest.per_attention
        )
        piece_fixed = slowest.seconds(work) + slowest.prompt
        piece = math.sqrt(backlog * piece_fixed / max(1, len(self.stages) - 1))
        return slowest.chunk_tokens(slowest.prompt + piece, work, load.prompt_context)

    def _add_chunk(self, work: StepWork, num_tokens: int) -> StepWork:
        return StepWork(
            num_tokens=work.num_tokens + num_tokens,
            num_decodes=work.num_decodes,
            prefill_attention=num_tokens * (2 * int(self.load.prompt_context) + num_tokens),
            decode_context=work.decode_context,
            num_sequences=work.num_sequences,
            num_sampled=work.num_sampled,
        )
