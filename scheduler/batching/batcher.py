"""Makes one microbatch: applies a policy's choices as far as slots, blocks and limits allow.

Decodes go first, then started and waiting prompts by urgency. Blocks are allocated and preempted
only here.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain

from runtime.protocol.step import SlotOpening
from scheduler.batching.microbatch import MicrobatchDraft
from scheduler.batching.preemption import PreemptionCandidates
from scheduler.kv_cache.slot_allocator import SlotAllocator
from scheduler.limits import SchedulerLimits
from scheduler.policies.interface import Policy, SchedulerView
from scheduler.sequences.queues import SequenceQueues
from scheduler.sequences.sequence import SequencePhase, SlotAllocation, TrackedSequence
from scheduler.sequences.waiting_queue import FairShare

MAX_DEFERRED = 16
"""Maximum of sequences that are skipped because they wait for another's prefix; bounds a step."""


class Batcher:
    """Fills one draft from the queues; one instance per step."""

    def __init__(
        self,
        limits: SchedulerLimits,
        policy: Policy,
        queues: SequenceQueues,
        slot_allocator: SlotAllocator,
        shares: FairShare,
        view: SchedulerView,
        admissible: Sequence[TrackedSequence],
    ) -> None:
        """`admissible` are the waiting sequences that fit into memory, in queue order."""
        self._limits = limits
        self._policy = policy
        self._queues = queues
        self._slot_allocator = slot_allocator
        self._shares = shares
        self._view = view
        self._admissible = admissible
        self.draft = MicrobatchDraft()
        self.num_preempted = 0
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        # Sequences with a prompt chunk in this microbatch.
        self._prompts: list[TrackedSequence] = []
        self._candidates: PreemptionCandidates | None = None

    def fill(self) -> MicrobatchDraft:
        """Adds decodes, then started and waiting prompts; returns the draft."""
        self._take_decodes()
        self._take_prompts()
        return self.draft

    def _take_decodes(self) -> None:
        """Adds as many decodes as were chosen; others replace those that find no block."""
        chosen = self._policy.choose_decodes(self._view)
        num_wanted = min(len(chosen), self._limits.max_step_tokens)
        self._take_ready(chosen, num_wanted)
        if len(self.draft.samples) < num_wanted:
            self._take_ready([each.sequence_id for each in self._view.ready], num_wanted)

    def _take_ready(self, sequence_ids: Iterable[int], num_wanted: int) -> None:
        """Adds decodes up to `num_wanted`, except those that find no block."""
        ready, samples = self._queues.ready, self.draft.samples
        taken: list[TrackedSequence] = []
        allocations: list[SlotAllocation] = []
        grown: dict[int, tuple[int, ...]] = {}
        for sequence_id in sequence_ids:
            if len(samples) == num_wanted:
                break
            sequence = ready.get(sequence_id)
            if sequence is None:  # added before, or preempted in this loop
                continue
            allocation = sequence.allocation
            assert allocation is not None, f"sequence {sequence_id} is ready without a slot"
            if allocation.num_sent == allocation.capacity:
                if not self._find_block(sequence):
                    continue
                grown[allocation.slot] = self._slot_allocator.grow(allocation)
            samples[allocation.slot] = allocation  # protects its blocks from preemption
            taken.append(sequence)
            allocations.append(allocation)
        self.draft.add_decodes(allocations, grown)
        self._queues.move_all(taken, SequencePhase.READY, SequencePhase.SAMPLING)

    def _find_block(self, sequence: TrackedSequence) -> bool:
        """Whether a block is free, if necessary by preempting less urgent sequences."""
        while self._slot_allocator.num_blocks_free == 0:  # shared blocks stay in use
            if self._candidates is None:
                self._candidates = PreemptionCandidates(self._queues.running(), self.draft)
            candidate = self._candidates.pop(sequence)
            if candidate is None:
                return False
            self._preempt(candidate)
        return True

    def _preempt(self, sequence: TrackedSequence) -> None:
        """Releases slot and blocks; the sequence computes its tokens again after readmission.

        A token in flight is dropped with the allocation: sampling is seeded by position, so the
        same token is sampled again.
        """
        self._slot_allocator.close(sequence)
        self._queues.move(sequence, SequencePhase.WAITING)
        self.num_preempted += 1

    def _take_prompts(self) -> None:
        """Continues started prompts and opens slots for waiting ones, the most urgent first.

        A waiting sequence that finds no memory blocks those behind it. One block is reserved for
        every ready decode that needs one, so that none is preempted for a new prompt.
        """
        begun = deque(self._queues.by_urgency(SequencePhase.PREFILL))
        admissible = deque(self._admissible)
        num_spare_blocks = self._num_blocks_short() if admissible else 0
        num_deferred = 0
        while (begun or admissible) and self.draft.num_tokens < self._limits.max_step_tokens:
            if begun and not (admissible and admissible[0].urgency_key < begun[0].urgency_key):
                sequence, cached = begun.popleft(), None
            else:
                sequence = admissible.popleft()
                cached = self._slot_allocator.find_cached(sequence)
                if self._is_computed_elsewhere(sequence, len(cached)):
                    num_deferred += 1
                    if num_deferred == MAX_DEFERRED:
                        admissible.clear()
                    continue
                if not self._slot_allocator.can_open(sequence, num_spare_blocks):
                    admissible.clear()
                    continue
            num_tokens = self._chunk_tokens(sequence)
            if num_tokens == 0:
                break
            new_block_ids = () if cached is None else self._admit(sequence, cached)
            assert sequence.allocation is not None, f"sequence {sequence.sequence_id} has no slot"
            self._take_prompt(sequence.allocation, num_tokens, new_block_ids)

    def _admit(self, sequence: TrackedSequence, cached: tuple[int, ...]) -> tuple[int, ...]:
        """Opens a slot; returns the newly allocated blocks."""
        allocation = self._slot_allocator.open(sequence, cached)
        self._queues.move(sequence, SequencePhase.PREFILL)
        self.draft.openings.append(
            SlotOpening(
                allocation.slot,
                sequence.request.sampling,
                tuple(sequence.token_ids[: allocation.num_sent]),
                cached,
            )
        )
        if not sequence.is_charged:  # once: readmission after preemption is not charged
            self._shares.admit(sequence.request.tenant, sequence.num_unsent)
            sequence.is_charged = True
        self.num_queried_tokens += len(sequence.token_ids)
        self.num_hit_tokens += allocation.num_sent
        return tuple(allocation.block_ids[len(cached) :])

    def _is_computed_elsewhere(self, sequence: TrackedSequence, num_cached: int) -> bool:
        """Whether another prompt, started or in this microbatch, computes an equal next block."""
        block_size = self._limits.block_size
        if num_cached == self._slot_allocator.num_sharable(sequence):
            return False
        block_hash = sequence.block_hash(num_cached, block_size)
        num_tokens = (num_cached + 1) * block_size
        return any(
            other.allocation is not None
            and other.allocation.num_hashed == num_cached
            and len(other.token_ids) >= num_tokens
            and other.block_hash(num_cached, block_size) == block_hash
            for other in chain(self._queues.of(SequencePhase.PREFILL), self._prompts)
        )

    def _num_blocks_short(self) -> int:
        allocations = [sequence.allocation for sequence in self._queues.ready.values()]
        return sum(
            allocation is not None and allocation.num_sent >= allocation.capacity
            for allocation in allocations
        )

    def _chunk_tokens(self, sequence: TrackedSequence) -> int:
        wanted = self._policy.chunk_tokens(self._view, self.draft, sequence)
        room = self._limits.max_step_tokens - self.draft.num_tokens
        return max(0, min(wanted, sequence.num_unsent, room))

    def _take_prompt(
        self, allocation: SlotAllocation, num_tokens: int, new_block_ids: tuple[int, ...]
    ) -> None:
        sequence = allocation.sequence
        self.draft.add_prompt(allocation, num_tokens, new_block_ids)
        self._prompts.append(sequence)
        if sequence.num_unsent == 0:
            self._queues.move(sequence, SequencePhase.SAMPLING)
