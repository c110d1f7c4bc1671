"""Owns which choices of a replica are not finished, what they ask for together, how each one ended.

It counts; it decides nothing.
"""

import asyncio
from collections.abc import Iterator

from coordinator.output.choice_stream import Generation
from coordinator.requests.types import Finish
from coordinator.telemetry.telemetry import observe_finish
from runtime.metrics.declarations import CoordinatorMetrics


class ActiveRequests:
    """The unfinished generations of one engine, by their sequences' ids."""

    def __init__(self, metrics: CoordinatorMetrics, replica: int) -> None:
        self._metrics = metrics
        self._replica = str(replica)
        self._generations: dict[int, Generation] = {}
        self.num_logprobs = 0
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

    def add(self, generation: Generation) -> None:
        """One more."""
        self._generations[generation.sequence_id] = generation
        self.num_logprobs += generation.request.sampling.num_logprobs
        self._idle.clear()

    def count_token(self) -> None:
        """One of them has one more token."""
        self.num_generated_tokens += 1
        self._metrics.generated_tokens.inc()

    def finish(self, generation: Generation, finish: Finish) -> None:
        """It came to its own end."""
        self._remove(generation)
        self._metrics.replica_requests.labels(self._replica).inc()
        observe_finish(self._metrics, generation.api, finish)

    def drop(self, generation: Generation, code: str) -> None:
        """It ended for the reason that `code` names."""
        self._remove(generation)
        self._metrics.replica_requests.labels(self._replica).inc()
        self._metrics.requests.labels(generation.api, code).inc()

    def hand_over(self, generation: Generation) -> None:
        """Another replica goes on with it."""
        self._remove(generation)
        self._metrics.handovers.labels(self._replica).inc()

    async def empty(self) -> None:
        """Returns once none is left."""
        await self._idle.wait()

    def _remove(self, generation: Generation) -> None:
        del self._generations[generation.sequence_id]
        self.num_logprobs -= generation.request.sampling.num_logprobs
        if not self._generations:
            self._idle.set()
