"""Owns what decides who may come in: tenants' shares, and the lengths of the answers that ended.

Both outlive epochs; a forecast does not. It hands nothing out: `batching.py` opens the slots.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.kv_cache.memory_forecast import OutputLengths, num_admissible
from scheduler.kv_cache.slot_allocator import SlotAllocator
from scheduler.sequences.queues import SequenceQueues
from scheduler.sequences.sequence import TrackedSequence
from scheduler.sequences.tenant_fairness import OUTPUT_WEIGHT, FairShare

MAX_LOOKED_AT = 256
"""So many of those that wait are looked at for one step."""
NUM_RUNNING_PER_STEP = 64
"""Forecasts look at everybody who runs, and are made so rarely that a step pays for so many."""


@dataclass(frozen=True, slots=True)
class QueueHead:
    """Who gets a slot next, in this order; memory to their ends is there for the first so many."""

    waiting: Sequence[TrackedSequence]
    num_admissible: int

    @property
    def admissible(self) -> Sequence[TrackedSequence]:
        """Those for whom there is memory and a slot."""
        return self.waiting[: self.num_admissible]


class AdmissionControl:
    """What a scheduler remembers of sequences that are gone."""

    def __init__(self) -> None:
        self.shares = FairShare()
        self._lengths = OutputLengths()
        # Until another forecast is due, so many may run.
        self._num_steps_to_forecast = 0
        self._most_running = 0

    def start_epoch(self) -> None:
        """Nobody runs, and there may be other memory: the last forecast says nothing any more."""
        self._num_steps_to_forecast = 0
        self._most_running = 0

    def queue_head(
        self, queues: SequenceQueues, slot_allocator: SlotAllocator, now: float
    ) -> QueueHead:
        """The line at this moment."""
        waiting = queues.next_waiting(now, MAX_LOOKED_AT)
        candidates = waiting[: slot_allocator.num_slots_free]
        if not candidates or slot_allocator.num_blocks_free == 0:
            return QueueHead(waiting, 0)
        final_tokens = sum(sequence.final_len for sequence in candidates)
        if slot_allocator.num_final_tokens + final_tokens <= slot_allocator.capacity_tokens:
            return QueueHead(waiting, len(candidates))  # whatever comes
        if self._num_steps_to_forecast == 0:
            self._forecast(queues, slot_allocator, candidates)
        else:
            self._num_steps_to_forecast -= 1
        number = self._most_running - slot_allocator.num_slots_used
        return QueueHead(waiting, max(0, min(len(candidates), number)))

    def _forecast(
        self,
        queues: SequenceQueues,
        slot_allocator: SlotAllocator,
        candidates: Sequence[TrackedSequence],
    ) -> None:
        """Finds out how many may run; where not all, that holds for some steps."""
        running, capacity_tokens = queues.running(), slot_allocator.capacity_tokens
        number = num_admissible(running, candidates, self._lengths, capacity_tokens)
        if number < len(candidates):
            # The first one left out may share what others hold, and so need less than it seems.
            slot_allocator.find_cached(candidates[number])
            if candidates[number].num_shared:
                number = num_admissible(running, candidates, self._lengths, capacity_tokens)
        if number < len(candidates):
            self._num_steps_to_forecast = len(running) // NUM_RUNNING_PER_STEP
        self._most_running = len(running) + number

    def charge_output(self, tenants: Iterable[str]) -> None:
        """One more token for a sequence of each of these."""
        for tenant, number in Counter(tenants).items():
            self.shares.charge(tenant, number * OUTPUT_WEIGHT)

    def record_finished(self, sequence: TrackedSequence) -> None:
        """A sequence is over, for whatever reason: that is what memory waits for."""
        if sequence.num_generated > 0:
            self._lengths.add(sequence.num_generated)
