"""The sequences that wait for a slot: order of admission, tenant fairness, wait forecast.

The order is aged priority (lowest number first), then the tenant that was served least, then the
earliest deadline. Nothing starves: a priority improves with time up to the best that waits, other
tenants' counters grow as they are served, and later arrivals have later deadlines.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heapreplace

from scheduler.sequences.sequence import TrackedSequence

OUTPUT_WEIGHT = 2
"""Weight of a generated token relative to a prompt token."""
MAX_COUNTERS = 1024


class FairShare:
    """One counter for each recently served tenant."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._last_served = 0

    def __getitem__(self, tenant: str) -> int:
        """The tenant's counter; the lowest is served first."""
        return self._served.get(tenant, 0)

    def arrive(self, tenant: str, others: Collection[str]) -> None:
        """Initialises a tenant whose queue was empty; `others` have waiting sequences."""
        least = min((self[other] for other in others), default=self._last_served)
        self._served[tenant] = max(self[tenant], least)
        if len(self._served) > MAX_COUNTERS:
            kept = {tenant, *others}
            self._served = {name: count for name, count in self._served.items() if name in kept}

    def admit(self, tenant: str, num_tokens: int) -> None:
        """Charges an admitted sequence with `num_tokens` to compute."""
        self._last_served = self[tenant]
        self.charge(tenant, num_tokens)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Adds served tokens to the tenant's counter."""
        self._served[tenant] = self[tenant] + num_tokens


NUM_STARTS = 64
MAX_WAIT_SECONDS = 60


class QueueForecast:
    """The times of the latest admissions from the queue."""

    def __init__(self) -> None:
        self._starts: deque[float] = deque(maxlen=NUM_STARTS)

    def started(self, now: float) -> None:
        """Records an admission from the queue."""
        self._starts.append(now)

    def wait_seconds(self, num_starts: int, now: float) -> int:
        """Predicted seconds until `num_starts` more admissions, from 1 to 60.

        The time since the last admission counts, so the prediction of a stalled queue grows.
        """
        if not self._starts:
            return 1
        seconds = num_starts * (now - self._starts[0]) / len(self._starts)
        return max(1, min(MAX_WAIT_SECONDS, math.ceil(seconds)))


AGEING_SECONDS = 30.0
"""Waiting time that improves a priority by one."""

_Key = tuple[float, float, int]


class _TenantQueue:
    """The waiting sequences of one tenant and priority, the earliest deadline first."""

    def __init__(self, tenant: str, priority: int) -> None:
        self.tenant = tenant
        self.priority = priority
        self._keys: list[_Key] = []
        self.sequences: list[TrackedSequence] = []

    def add(self, sequence: TrackedSequence) -> None:
        index = bisect_left(self._keys, sequence.due_key)
        self._keys.insert(index, sequence.due_key)
        self.sequences.insert(index, sequence)

    def remove(self, sequence: TrackedSequence) -> None:
        index = bisect_left(self._keys, sequence.due_key)
        assert self.sequences[index] is sequence, (
            f"sequence {sequence.sequence_id} is not in the queue"
        )
        del self._keys[index], self.sequences[index]

    def check_integrity(self) -> None:
        keys = [sequence.due_key for sequence in self.sequences]
        assert keys == sorted(keys) == self._keys, f"waiting out of order: {keys}"


class WaitingQueue:
    """All sequences without a slot, in one queue per tenant and priority."""

    def __init__(self, shares: FairShare) -> None:
        self._shares = shares
        self._queues: dict[tuple[str, int], _TenantQueue] = {}
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[TrackedSequence]:
        """All sequences, in no particular order."""
        for queue in self._queues.values():
            yield from queue.sequences

    def add(self, sequence: TrackedSequence) -> None:
        request = sequence.request
        key = (request.tenant, request.priority)
        if key not in self._queues:
            tenants = {queue.tenant for queue in self._queues.values()}
            if request.tenant not in tenants:
                self._shares.arrive(request.tenant, tenants)
            self._queues[key] = _TenantQueue(*key)
        self._queues[key].add(sequence)
        self._num_waiting += 1

    def remove(self, sequence: TrackedSequence) -> None:
        """Removes a sequence that is admitted or ended."""
        key = (sequence.request.tenant, sequence.request.priority)
        queue = self._queues[key]
        queue.remove(sequence)
        self._num_waiting -= 1
        if not queue.sequences:
            del self._queues[key]

    def in_order(self, now: float) -> Iterator[TrackedSequence]:
        """Yields sequences in the order of admission, charging each to its tenant virtually.

        Sets each sequence's aged priority (`rank`), which it keeps while it runs.
        """
        best = min((priority for _, priority in self._queues), default=0)
        if len(self._queues) == 1:
            for sequence in next(iter(self._queues.values())).sequences:
                sequence.rank = best
                yield sequence
            return
        served = {tenant: self._shares[tenant] for tenant, _ in self._queues}

        def turn(sequence: TrackedSequence) -> tuple[int, int, _Key]:
            return _aged(sequence, now, best), served[sequence.request.tenant], sequence.due_key

        queues = [iter(queue.sequences) for queue in self._queues.values()]
        heads = [(turn(head := next(queue)), head, queue) for queue in queues]
        heapify(heads)
        while heads:
            key, sequence, queue = heads[0]
            key_now = turn(sequence)
            if key_now != key:  # its tenant was charged since
                heapreplace(heads, (key_now, sequence, queue))
                continue
            if (following := next(queue, None)) is None:
                heappop(heads)
            else:
                heapreplace(heads, (turn(following), following, queue))
            sequence.rank = _aged(sequence, now, best)
            served[sequence.request.tenant] += sequence.num_unsent
            yield sequence

    def check_integrity(self) -> None:
        """Asserts that every queue is in order and none is empty."""
        assert self._num_waiting == sum(len(queue.sequences) for queue in self._queues.values())
        for queue in self._queues.values():
            assert queue.sequences, "an empty queue is kept"
            queue.check_integrity()


def _aged(sequence: TrackedSequence, now: float, best: int) -> int:
    request = sequence.request
    num_steps = int(max(0.0, now - request.arrival) / AGEING_SECONDS)
    return max(min(best, request.priority), request.priority - num_steps)
