"""Owns which choices of a replica are not finished, what they ask for together, how each one ended.

It counts; it decides nothing.
"""

import asyncio
from collections.abc import Iterator

from coordinator.output.choice_stream import Generation
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.inference_types import Finish


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
        _observe_finish(self._metrics, generation.api, finish)

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


def _observe_finish(metrics: CoordinatorMetrics, api: str, finish: Finish) -> None:
    """Counts a choice that finished, and observes its lengths and times."""
    metrics.requests.labels(api, finish.reason.value).inc()
    timings, num_tokens = finish.timings, finish.usage.completion_tokens
    metrics.prompt_length.observe(finish.usage.prompt_tokens)
    metrics.generation_length.observe(num_tokens)
    if num_tokens == 0:
        return
    decode_seconds = timings.total_seconds - timings.first_token_seconds
    metrics.time_to_first_token.observe(timings.first_token_seconds)
    metrics.request_seconds.observe(timings.total_seconds)
    metrics.queue_seconds.observe(timings.queue_seconds)
    metrics.prefill_seconds.observe(timings.first_token_seconds - timings.queue_seconds)
    metrics.decode_seconds.observe(decode_seconds)
    if num_tokens > 1:
        metrics.time_per_output_token.observe(decode_seconds / (num_tokens - 1))
