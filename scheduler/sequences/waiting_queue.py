"""The sequences that wait for a slot, and the order of admission.

The order is aged priority (lowest number first), then the tenant that was served least, then the
earliest deadline. Nothing starves: a priority improves with time up to the best that waits, other
tenants' counters grow as they are served, and later arrivals have later deadlines.
"""

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace

from scheduler.sequences.sequence import TrackedSequence
from scheduler.sequences.tenant_fairness import FairShare

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
