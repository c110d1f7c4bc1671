"""The open slots of one epoch: each sequence's sampling parameters, length and block table.

Checks and applies a step's releases, openings and chunks before anything is computed. The
coordinator allocates slots and blocks. Any error ends the epoch, so a partly applied step has no
effect.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from runtime.errors import BlockError, FrameError, PositionError, SlotError
from runtime.protocol.step import SequenceChunk, SlotOpening, SlotSampling, Step


@dataclass(slots=True)
class Slot:
    """One sequence: its sampling parameters, its number of cached tokens, and their blocks.

    `token_ids` are kept if `sampling.needs_tokens`. The opening has the cached ones and the chunks
    the others, from position 0 on also after a replay, so generated tokens need no message.
    """

    sampling: SlotSampling
    num_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """The limits of an epoch: slots, cache blocks, tokens per block and per sequence."""

    max_sequences: int
    num_blocks: int
    block_size: int
    max_model_len: int


class SlotTable:
    """Open slots by number. `tables_BP` [max_sequences, blocks per sequence] holds their block ids.

    Entries of `tables_BP` past a sequence's own blocks are stale ids of earlier sequences. A full
    block may be in several tables: a slot writes only at its next position, after all its full
    blocks.
    """

    def __init__(self, limits: SlotLimits) -> None:
        self._limits = limits
        self._slots: dict[int, Slot] = {}
        # The number of tables that contain each block, and the blocks that hold block_size tokens.
        self._num_holders: Counter[int] = Counter()
        self._full_blocks: set[int] = set()
        max_blocks = -(-limits.max_model_len // limits.block_size)
        self.tables_BP = torch.zeros(limits.max_sequences, max_blocks, dtype=torch.int64)

    @property
    def num_slots_used(self) -> int:
        """Number of open slots."""
        return len(self._slots)

    @property
    def num_blocks_used(self) -> int:
        """Number of distinct blocks in the tables of open slots."""
        return len(self._num_holders)

    def __getitem__(self, slot: int) -> Slot:
        return self._slots[slot]

    def apply(self, step: Step) -> None:
        """Checks and applies the step's changes.

        Raises `SlotError`, `PositionError`, `BlockError` or, for a chunk that is empty or makes its
        sequence too long, `FrameError`.
        """
        for slot in step.released_slots:
            self._release(slot)
        for opening in step.opened_slots:
            self._open(opening)
        for chunk in step.chunks:
            self._extend(chunk)

    def _release(self, slot: int) -> None:
        for block in self._held(slot).block_ids:
            self._num_holders[block] -= 1
            if self._num_holders[block] == 0:
                del self._num_holders[block]
        del self._slots[slot]

    def _held(self, slot: int) -> Slot:
        held = self._slots.get(slot)
        if held is None:
            raise SlotError(slot=slot, problem="it is not open")
        return held

    def _open(self, opening: SlotOpening) -> None:
        if opening.slot in self._slots:
            raise SlotError(slot=opening.slot, problem="it is open already")
        if not 0 <= opening.slot < self._limits.max_sequences:
            problem = f"it is outside the plan's {self._limits.max_sequences} slots"
            raise SlotError(slot=opening.slot, problem=problem)
        if not _is_drawable(opening.sampling):
            raise SlotError(slot=opening.slot, problem=f"cannot draw with {opening.sampling}")
        held = self._slots[opening.slot] = Slot(opening.sampling)
        self._take_cached(opening, held)

    def _take_cached(self, opening: SlotOpening, held: Slot) -> None:
        """Adds shared blocks to the table; they are full, so no sequence writes to them."""
        slot, blocks = opening.slot, opening.cached_block_ids
        num_tokens = len(blocks) * self._limits.block_size
        if len(opening.cached_token_ids) != num_tokens:
            what = f"cached tokens of slot {slot}"
            actual = len(opening.cached_token_ids)
            raise FrameError(what=what, expected=num_tokens, actual=actual)
        if num_tokens >= self._limits.max_model_len:
            expected = f"less than {self._limits.max_model_len}"
            raise FrameError(what=f"tokens of slot {slot}", expected=expected, actual=num_tokens)
        for block in blocks:
            if block not in self._full_blocks:
                problem = "it is to be shared and no step of this epoch has filled it"
                raise BlockError(slot=slot, block=block, problem=problem)
        if len(set(blocks)) < len(blocks):
            raise BlockError(slot=slot, block=blocks[-1], problem="a block is shared twice")
        self._put_into_table(slot, held, blocks)
        held.num_tokens = num_tokens
        if held.sampling.needs_tokens:
            held.token_ids.extend(opening.cached_token_ids)

    def _extend(self, chunk: SequenceChunk) -> None:
        held = self._held(chunk.slot)
        if chunk.position != held.num_tokens:
            raise PositionError(slot=chunk.slot, expected=held.num_tokens, actual=chunk.position)
        num_tokens = held.num_tokens + len(chunk.token_ids)
        if num_tokens == held.num_tokens:
            what = f"new tokens of slot {chunk.slot}"
            raise FrameError(what=what, expected="at least 1", actual=0)
        if num_tokens > self._limits.max_model_len:
            expected = f"at most {self._limits.max_model_len}"
            raise FrameError(
                what=f"tokens of slot {chunk.slot}", expected=expected, actual=num_tokens
            )
        self._append_blocks(chunk.slot, held, chunk.new_block_ids)
        capacity = len(held.block_ids) * self._limits.block_size
        if num_tokens > capacity:
            block = held.block_ids[-1] if held.block_ids else -1
            problem = f"the last of {capacity} tokens' blocks, too few for {num_tokens} tokens"
            raise BlockError(slot=chunk.slot, block=block, problem=problem)
        first, end = (n // self._limits.block_size for n in (held.num_tokens, num_tokens))
        self._full_blocks.update(held.block_ids[first:end])
        held.num_tokens = num_tokens
        if held.sampling.needs_tokens:
            held.token_ids.extend(chunk.token_ids)

    def _append_blocks(self, slot: int, held: Slot, block_ids: Sequence[int]) -> None:
        self._check_blocks(slot, block_ids)
        self._put_into_table(slot, held, block_ids)
        self._full_blocks.difference_update(block_ids)

    def _put_into_table(self, slot: int, held: Slot, block_ids: Sequence[int]) -> None:
        begin = len(held.block_ids)
        end = begin + len(block_ids)
        if begin == end:
            return
        if end > self.tables_BP.shape[1]:
            problem = f"more than the {self.tables_BP.shape[1]} blocks of the longest sequence"
            raise BlockError(slot=slot, block=block_ids[-1], problem=problem)
        self.tables_BP[slot, begin:end] = torch.tensor(block_ids)
        self._num_holders.update(block_ids)
        held.block_ids.extend(block_ids)

    def _check_blocks(self, slot: int, block_ids: Sequence[int]) -> None:
        new: set[int] = set()
        for block in block_ids:
            if not 0 <= block < self._limits.num_blocks:
                problem = f"it is outside the plan's {self._limits.num_blocks} blocks"
                raise BlockError(slot=slot, block=block, problem=problem)
            if block in self._num_holders or block in new:
                raise BlockError(slot=slot, block=block, problem="it is in use")
            new.add(block)


def _is_drawable(sampling: SlotSampling) -> bool:
    """Whether `sampler.py` can draw a token with these parameters; False for NaN."""
    is_greedy = sampling.temperature == 0  # and ignores the other parameters
    return is_greedy or (
        0 < sampling.temperature < math.inf and 0 < sampling.top_p <= 1 and 0 <= sampling.min_p <= 1
    )
