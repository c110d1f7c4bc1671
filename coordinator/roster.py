"""Owns which choices are not finished yet, what they ask for together, and how each one ended.

It counts; it decides nothing but whether there is room for the log-probabilities that are wanted.
"""

import asyncio
from collections.abc import Iterator, Sequence

from coordinator.generation import Generation
from coordinator.requests import Finish
from coordinator.telemetry import observe_finish
from runtime.errors import TooManyLogprobsError
from runtime.metrics import CoordinatorMetrics

# Log-probabilities that one step may have to report: its result stays far below the 16 MiB of a
# message, and turning it over takes the event loop a fraction of a second.
MAX_LOGPROBS_PER_STEP = 1 << 18


class Roster:
    """The unfinished generations of one engine, by their sequences' ids."""

    def __init__(self, metrics: CoordinatorMetrics) -> None:
        self._metrics = metrics
        self._generations: dict[int, Generation] = {}
        self._num_logprobs = 0
        # Sums since the start.
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._generations)

    def __getitem__(self, sequence_id: int) -> Generation:
        return self._generations[sequence_id]

    def __contains__(self, generation: Generation) -> bool:
        return generation.sequence_id in self._generations

    def __iter__(self) -> Iterator[Generation]:
        """Over a copy: who iterates may remove."""
        return iter(tuple(self._generations.values()))

    def check_logprobs(self, generations: Sequence[Generation]) -> None:
        """Raises `TooManyLogprobsError` if these ask for more than a step can report."""
        num_logprobs = sum(each.request.sampling.num_logprobs for each in generations)
        if num_logprobs and self._num_logprobs + num_logprobs > MAX_LOGPROBS_PER_STEP:
            raise TooManyLogprobsError(
                num_logprobs=num_logprobs,
                num_others=self._num_logprobs,
                limit=MAX_LOGPROBS_PER_STEP,
            )

    def add(self, generation: Generation) -> None:
        """One more."""
        self._generations[generation.sequence_id] = generation
        self._num_logprobs += generation.request.sampling.num_logprobs
        num_tokens = len(generation.request.prompt_ids)
        self.num_prompt_tokens += num_tokens
        self._metrics.prompt_tokens.inc(num_tokens)
        self._idle.clear()

    def count_token(self) -> None:
        """One of them has one more token."""
        self.num_generated_tokens += 1
        self._metrics.generated_tokens.inc()

    def finish(self, generation: Generation, finish: Finish) -> None:
        """It came to its own end."""
        self._remove(generation)
        observe_finish(self._metrics, finish)

    def drop(self, generation: Generation, code: str) -> None:
        """It ended for the reason that `code` names."""
        self._remove(generation)
        self._metrics.requests.labels(code).inc()

    async def empty(self) -> None:
        """Returns once none is left."""
        await self._idle.wait()

    def _remove(self, generation: Generation) -> None:
        del self._generations[generation.sequence_id]
        self._num_logprobs -= generation.request.sampling.num_logprobs
        if not self._generations:
            self._idle.set()
