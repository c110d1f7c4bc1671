"""Owns slots and KV blocks of the sequences that have them, and the releases not yet sent.

It hands out and takes back; who gets them is decided elsewhere.
"""

import heapq
from collections.abc import Iterable

from scheduler.block_manager import BlockManager
from scheduler.limits import SchedulerLimits
from scheduler.sequence import Residence, TrackedSequence


class Residences:
    """The slots and blocks of one epoch, which starts with all of them free.

    A closed residence's slot and blocks are free at once: the next step's header carries the
    release, and within a header releases come before openings.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self._blocks = BlockManager(limits.num_blocks)
        # Slots that were open once, a heap, and the first of those that never were.
        self._freed_slots: list[int] = []
        self._first_fresh_slot = 0
        self._holders: dict[int, TrackedSequence] = {}
        self._released_slots: list[int] = []

    @property
    def num_blocks_used(self) -> int:
        """Blocks that sequences hold."""
        return self._blocks.num_used

    @property
    def num_blocks_free(self) -> int:
        """Blocks that may be handed out now."""
        return self._blocks.num_free

    @property
    def num_slots_used(self) -> int:
        """Slots that sequences hold."""
        return len(self._holders)

    @property
    def has_releases(self) -> bool:
        """Whether the stages still hold slots that are released here."""
        return bool(self._released_slots)

    def holder(self, slot: int) -> TrackedSequence:
        """The sequence that holds a slot, which must be in use."""
        return self._holders[slot]

    def blocks_to_open(self, sequence: TrackedSequence) -> int:
        """Blocks for all known tokens and the next one, if that will need a position."""
        known = len(sequence.token_ids)
        return self._limits.blocks_for(min(known + 1, sequence.final_len - 1))

    def can_open(self, sequence: TrackedSequence, num_spare_blocks: int) -> bool:
        """Whether a slot and blocks for it are free, with so many blocks left over."""
        needed = self.blocks_to_open(sequence) + num_spare_blocks
        has_slot = self.num_slots_used < self._limits.max_sequences
        return has_slot and needed <= self._blocks.num_free

    def open(self, sequence: TrackedSequence) -> Residence:
        """Gives the sequence the lowest free slot and its blocks; `can_open` must hold."""
        assert sequence.residence is None, f"sequence {sequence.sequence_id} has a slot"
        slot = self._take_slot()
        block_ids = self._blocks.take(self.blocks_to_open(sequence))
        sequence.residence = Residence(slot=slot, block_ids=list(block_ids))
        self._holders[slot] = sequence
        return sequence.residence

    def _take_slot(self) -> int:
        if self._freed_slots:
            return heapq.heappop(self._freed_slots)
        self._first_fresh_slot += 1
        return self._first_fresh_slot - 1

    def needs_block(self, residence: Residence) -> bool:
        """Whether the position after those sent lies beyond the residence's blocks."""
        return residence.num_sent >= len(residence.block_ids) * self._limits.block_size

    def grow(self, residence: Residence) -> tuple[int, ...]:
        """Takes one more block, of which one must be free, and returns it."""
        block_ids = self._blocks.take(1)
        residence.block_ids.extend(block_ids)
        return block_ids

    def close(self, sequence: TrackedSequence) -> None:
        """Takes slot and blocks back, if the sequence has any."""
        residence = sequence.residence
        if residence is None:
            return
        sequence.residence = None
        del self._holders[residence.slot]
        self._blocks.free(residence.block_ids)
        heapq.heappush(self._freed_slots, residence.slot)
        self._released_slots.append(residence.slot)

    def take_releases(self) -> tuple[int, ...]:
        """The slots to release with the next step, which now counts as sent."""
        released = tuple(self._released_slots)
        self._released_slots.clear()
        return released

    def check_integrity(self, running: Iterable[TrackedSequence]) -> None:
        """Asserts that the running sequences hold every taken slot and block, each once."""
        stays = {sequence.sequence_id: sequence.residence for sequence in running}
        holders = {holder.sequence_id: holder.residence for holder in self._holders.values()}
        assert stays == holders, f"running {sorted(stays)}, holding slots {sorted(holders)}"
        for slot, holder in self._holders.items():
            residence = holder.residence
            assert residence is not None, f"slot {slot} is held by one without a residence"
            assert residence.slot == slot, f"slot {slot} is held from slot {residence.slot}"
            capacity = len(residence.block_ids) * self._limits.block_size
            assert residence.num_sent <= capacity, f"slot {slot} holds more than {capacity}"
        slots = sorted([*self._freed_slots, *self._holders])
        assert slots == list(range(self._first_fresh_slot)), f"slots lost or doubled: {slots}"
        assert len(self._holders) <= self._limits.max_sequences, "more slots than there are"
        assert set(self._released_slots) <= set(self._freed_slots), "a released slot is in use"
        held = [block for stay in stays.values() if stay for block in stay.block_ids]
        self._blocks.check_integrity(held, self._limits.num_blocks)
