"""Holds the unfinished requests of one engine, and counts those that leave it."""

import asyncio
from collections.abc import Iterator

from runtime.metrics.declarations import CoordinatorMetrics
from scheduler import SequenceRequest


class ActiveRequests:
    """The unfinished requests of one engine, by sequence id."""

    def __init__(self, metrics: CoordinatorMetrics, replica: int) -> None:
        self.num_logprobs = 0
        self._ended = metrics.replica_requests.labels(str(replica))
        self._handed_over = metrics.handovers.labels(str(replica))
        self._requests: dict[int, SequenceRequest] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, sequence_id: int) -> SequenceRequest:
        return self._requests[sequence_id]

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._requests

    def __iter__(self) -> Iterator[SequenceRequest]:
        """Iterates over a copy, so that the loop may remove requests."""
        return iter(tuple(self._requests.values()))

    def add(self, request: SequenceRequest) -> None:
        """Adds a request with a new id."""
        self._requests[request.sequence_id] = request
        self.num_logprobs += request.sampling.num_logprobs
        self._idle.clear()

    def remove(self, sequence_id: int, *, is_handover: bool = False) -> None:
        """Removes a request that ended, or that another replica continues."""
        request = self._requests.pop(sequence_id)
        self.num_logprobs -= request.sampling.num_logprobs
        (self._handed_over if is_handover else self._ended).inc()
        if not self._requests:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Returns once no request is left."""
        await self._idle.wait()
