"""Decides how many waiting sequences are admitted, by a forecast of memory in use.

It keeps tenants' shares and the lengths of finished answers across epochs, and a forecast within
one epoch. It allocates nothing: `batcher.py` opens the slots.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.kv_cache.memory_forecast import OutputLengths, num_admissible
from scheduler.kv_cache.slot_allocator import SlotAllocator
from scheduler.sequences.queues import SequenceQueues
from scheduler.sequences.sequence import TrackedSequence
from scheduler.sequences.waiting_queue import OUTPUT_WEIGHT, FairShare

MAX_CANDIDATES = 256
"""Maximum number of waiting sequences that are considered for one step."""
NUM_RUNNING_PER_STEP = 64
"""Running sequences per step between two forecasts: a forecast's cost grows with all running."""


@dataclass(frozen=True, slots=True)
class QueueHead:
    """The waiting sequences that are next, in order; the first `num_admissible` fit into memory."""

    waiting: Sequence[TrackedSequence]
    num_admissible: int

    @property
    def admissible(self) -> Sequence[TrackedSequence]:
        """The waiting sequences with memory and a slot."""
        return self.waiting[: self.num_admissible]


class AdmissionControl:
    """Tenants' shares, lengths of finished answers, and the current forecast."""

    def __init__(self) -> None:
        self.shares = FairShare()
        self._lengths = OutputLengths()
        # Limit of running sequences until the next forecast.
        self._num_steps_to_forecast = 0
        self._max_running = 0

    def start_epoch(self) -> None:
        """Discards the forecast: nothing runs, and the memory may be different."""
        self._num_steps_to_forecast = 0
        self._max_running = 0

    def queue_head(
        self, queues: SequenceQueues, slot_allocator: SlotAllocator, now: float
    ) -> QueueHead:
        """Returns the head of the waiting queue and how much of it is admissible."""
        waiting = queues.next_waiting(now, MAX_CANDIDATES)
        candidates = waiting[: slot_allocator.num_slots_free]
        if not candidates or slot_allocator.num_blocks_free == 0:
            return QueueHead(waiting, 0)
        final_tokens = sum(sequence.final_len for sequence in candidates)
        if slot_allocator.num_final_tokens + final_tokens <= slot_allocator.capacity_tokens:
            return QueueHead(waiting, len(candidates))  # even at maximum length
        if self._num_steps_to_forecast == 0:
            self._forecast(queues, slot_allocator, candidates)
        else:
            self._num_steps_to_forecast -= 1
        number = self._max_running - slot_allocator.num_slots_used
        return QueueHead(waiting, max(0, min(len(candidates), number)))

    def _forecast(
        self,
        queues: SequenceQueues,
        slot_allocator: SlotAllocator,
        candidates: Sequence[TrackedSequence],
    ) -> None:
        """Calculates how many sequences may run; if not all, the result holds for some steps."""
        running, capacity_tokens = queues.running(), slot_allocator.capacity_tokens
        number = num_admissible(running, candidates, self._lengths, capacity_tokens)
        if number < len(candidates):
            # The first excluded sequence may share cached blocks, and so need less memory.
            slot_allocator.find_cached(candidates[number])
            if candidates[number].num_shared:
                number = num_admissible(running, candidates, self._lengths, capacity_tokens)
        if number < len(candidates):
            self._num_steps_to_forecast = len(running) // NUM_RUNNING_PER_STEP
        self._max_running = len(running) + number

    def charge_output(self, tenants: Iterable[str]) -> None:
        """Charges one generated token to each of these tenants."""
        for tenant, number in Counter(tenants).items():
            self.shares.charge(tenant, number * OUTPUT_WEIGHT)

    def record_finished(self, sequence: TrackedSequence) -> None:
        """Records the length of an answer that ended, cancelled ones included."""
        if sequence.num_generated > 0:
            self._lengths.add(sequence.num_generated)
