"""Allocates slots and KV blocks to sequences, finds cached prefixes, and collects releases to send.

It does not decide which sequence is admitted.
"""

import heapq
from collections import Counter
from collections.abc import Iterable

from scheduler.kv_cache.block_manager import BlockManager
from scheduler.limits import SchedulerLimits
from scheduler.sequences.sequence import SlotAllocation, TrackedSequence


class SlotAllocator:
    """The slots and blocks of one epoch; all are free at first, and nothing is cached.

    The slot and blocks of a closed allocation are free at once: the next step's header carries the
    release, and in a header releases precede openings. A block may be shared as soon as the step
    that fills it was sent: steps run in order, so every reader runs later.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self._blocks = BlockManager(limits.num_blocks)
        # A heap of released slots, and the first slot that was never used.
        self._freed_slots: list[int] = []
        self._first_fresh_slot = 0
        self._holders: dict[int, TrackedSequence] = {}
        self._released_slots: list[int] = []
        # Entries in block tables, and tokens of all sequences at their maximum lengths.
        self._num_held = 0
        self.num_final_tokens = 0

    @property
    def num_blocks_used(self) -> int:
        """Blocks held by sequences."""
        return self._blocks.num_used

    @property
    def num_blocks_free(self) -> int:
        """Blocks that can be allocated."""
        return self._blocks.num_free

    @property
    def capacity_tokens(self) -> float:
        """Positions of all blocks, with shared blocks counted once per holder.

        Assumes that half of each sequence's last block is empty.
        """
        num_blocks = self._limits.num_blocks + self._num_held - self._blocks.num_used
        return self._limits.block_size * (num_blocks - len(self._holders) / 2)

    @property
    def num_slots_used(self) -> int:
        """Slots held by sequences."""
        return len(self._holders)

    @property
    def num_slots_free(self) -> int:
        """Slots that can be allocated."""
        return self._limits.max_sequences - len(self._holders)

    @property
    def has_releases(self) -> bool:
        """Whether released slots are not yet sent to the stages."""
        return bool(self._released_slots)

    def holder(self, slot: int) -> TrackedSequence:
        """The sequence that holds a slot, which must be in use."""
        return self._holders[slot]

    def find_cached(self, sequence: TrackedSequence) -> tuple[int, ...]:
        """The cached blocks of the sequence's prefix, without its last token, which is computed.

        Updates the sequence's `num_cached` and `num_shared`.
        """
        found: list[int] = []
        block_size = self._limits.block_size
        for index in range(self.num_sharable(sequence)):
            block_id = self._blocks.find(sequence.block_hash(index, block_size))
            if block_id is None:
                break
            found.append(block_id)
        sequence.num_cached = len(found) * block_size
        sequence.num_shared = sum(map(self._blocks.is_held, found)) * block_size
        return tuple(found)

    def num_sharable(self, sequence: TrackedSequence) -> int:
        """The number of blocks, from the first, that may be taken from the cache."""
        if not (self._limits.prefix_caching and sequence.request.reads_prefix_cache):
            return 0
        return (len(sequence.token_ids) - 1) // self._limits.block_size

    def blocks_to_open(self, sequence: TrackedSequence) -> int:
        """Blocks for all known tokens and the next one, if it needs a position."""
        known = len(sequence.token_ids)
        return self._limits.blocks_for(min(known + 1, sequence.final_len - 1))

    def can_open(self, sequence: TrackedSequence, num_spare_blocks: int) -> bool:
        """Whether a slot and enough blocks are free, with `num_spare_blocks` left.

        Call `find_cached` just before.
        """
        num_shared = sequence.num_shared // self._limits.block_size
        needed = self.blocks_to_open(sequence) - num_shared + num_spare_blocks
        return self.num_slots_free > 0 and needed <= self._blocks.num_free

    def open(self, sequence: TrackedSequence, cached: tuple[int, ...]) -> SlotAllocation:
        """Allocates the lowest free slot and the blocks; `can_open` must hold.

        `cached` is the result of `find_cached` just before.
        """
        assert sequence.allocation is None, f"sequence {sequence.sequence_id} has a slot"
        slot = self._take_slot()
        self._blocks.share(cached)
        new = self._blocks.take(self.blocks_to_open(sequence) - len(cached))
        block_ids, block_size = [*cached, *new], self._limits.block_size
        sequence.allocation = SlotAllocation(
            sequence=sequence,
            slot=slot,
            block_ids=block_ids,
            capacity=len(block_ids) * block_size,
            num_sent=len(cached) * block_size,
            num_hashed=len(cached),
        )
        self._holders[slot] = sequence
        self._num_held += len(block_ids)
        self.num_final_tokens += sequence.final_len
        return sequence.allocation

    def _take_slot(self) -> int:
        if self._freed_slots:
            return heapq.heappop(self._freed_slots)
        self._first_fresh_slot += 1
        return self._first_fresh_slot - 1

    def grow(self, allocation: SlotAllocation) -> tuple[int, ...]:
        """Allocates and returns one more block, of which one must be free."""
        block_id = self._blocks.take_one()
        allocation.block_ids.append(block_id)
        allocation.capacity += self._limits.block_size
        self._num_held += 1
        return (block_id,)

    def register_full_blocks(self, allocations: Iterable[SlotAllocation]) -> None:
        """Registers the hashes of filled blocks, so that others can share them."""
        if not self._limits.prefix_caching:
            return
        block_size = self._limits.block_size
        for allocation in allocations:
            num_full = allocation.num_sent // block_size
            hashes = allocation.sequence.block_hashes(num_full, block_size)
            for index in range(allocation.num_hashed, num_full):
                self._blocks.register(allocation.block_ids[index], hashes[index])
            allocation.num_hashed = num_full

    def close(self, sequence: TrackedSequence) -> None:
        """Releases the sequence's slot and blocks, if it has any."""
        allocation = sequence.allocation
        if allocation is None:
            return
        sequence.allocation = None
        del self._holders[allocation.slot]
        self._num_held -= len(allocation.block_ids)
        self.num_final_tokens -= sequence.final_len
        # Last block first: a suffix is useless without its prefix, so it is evicted earlier.
        self._blocks.free(reversed(allocation.block_ids))
        heapq.heappush(self._freed_slots, allocation.slot)
        self._released_slots.append(allocation.slot)

    def take_releases(self) -> tuple[int, ...]:
        """Removes and returns the slots to release with the next step."""
        released = tuple(self._released_slots)
        self._released_slots.clear()
        return released

    def check_integrity(self, running: Iterable[TrackedSequence]) -> None:
        """Asserts that the running sequences hold all allocated slots and blocks."""
        allocations = {sequence.sequence_id: sequence.allocation for sequence in running}
        holders = {holder.sequence_id: holder.allocation for holder in self._holders.values()}
        assert allocations == holders, (
            f"running {sorted(allocations)}, holding slots {sorted(holders)}"
        )
        for slot, holder in self._holders.items():
            self._check_allocation(slot, holder)
        slots = sorted([*self._freed_slots, *self._holders])
        assert slots == list(range(self._first_fresh_slot)), f"slots lost or doubled: {slots}"
        assert len(self._holders) <= self._limits.max_sequences, "more slots than there are"
        assert set(self._released_slots) <= set(self._freed_slots), "a released slot is in use"
        held = [
            block
            for allocation in allocations.values()
            if allocation
            for block in allocation.block_ids
        ]
        self._blocks.check_integrity(held, self._limits.num_blocks)
        num_holders = Counter(held)
        assert len(held) == self._num_held, f"{len(held)} held, {self._num_held} counted"
        final = sum(holder.final_len for holder in self._holders.values())
        assert final == self.num_final_tokens, f"{final} tokens, {self.num_final_tokens} counted"
        own = [
            block
            for allocation in allocations.values()
            if allocation
            for block in allocation.block_ids[allocation.num_hashed :]
        ]
        assert all(num_holders[block] == 1 for block in own), "a block is shared that is not full"

    def _check_allocation(self, slot: int, holder: TrackedSequence) -> None:
        allocation = holder.allocation
        assert allocation is not None, f"slot {slot} is held without an allocation"
        assert allocation.slot == slot, f"slot {slot} is held from slot {allocation.slot}"
        assert allocation.sequence is holder, f"slot {slot} is allocated to another sequence"
        capacity = len(allocation.block_ids) * self._limits.block_size
        assert allocation.capacity == capacity, f"slot {slot} has room for {capacity}"
        assert allocation.num_sent <= capacity, f"slot {slot} holds more than {capacity}"
        assert len(set(allocation.block_ids)) == len(allocation.block_ids), (
            f"slot {slot} has a block twice"
        )
        if self._limits.prefix_caching:
            num_full = allocation.num_sent // self._limits.block_size
            assert allocation.num_hashed == num_full, f"slot {slot} has {num_full} full blocks"
