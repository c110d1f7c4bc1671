"""A model of a replica's stages that checks every step as a worker would.

Its KV cache holds token ids, reached only through the block tables that steps build. A drawn token
is a hash of the cached tokens before it, so that one wrong block, position or token changes
every token after it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from runtime.protocol.step import SampledToken, SequenceChunk, SlotOpening, SlotSampling, Step
from scheduler import SchedulerLimits

VOCAB_SIZE = 11


def draw(context: Sequence[int], seed: int) -> int:
    """The token after `context`: a function of all of it and of the seed."""
    digest = hashlib.blake2b(repr((list(context), seed)).encode(), digest_size=4).digest()
    return int.from_bytes(digest) % VOCAB_SIZE


@dataclass
class StageSlot:
    """A worker's state of a slot."""

    sampling: SlotSampling
    block_table: list[int] = field(default_factory=list)
    num_tokens: int = 0


class StageModel:
    """Executes the steps of one epoch strictly in order, asserting that each is valid."""

    def __init__(self, limits: SchedulerLimits, first_step: int = 0) -> None:
        self._limits = limits
        self._kv: dict[tuple[int, int], int] = {}
        self.slots: dict[int, StageSlot] = {}
        self._first_step = first_step
        self.num_steps = 0
        self.num_tokens = 0

    @property
    def num_blocks_used(self) -> int:
        """Blocks in some block table, each counted once."""
        return len({block for slot in self.slots.values() for block in slot.block_table})

    def run(self, step: Step) -> tuple[SampledToken, ...]:
        """Applies releases, openings and chunks; returns the sampled tokens in chunk order."""
        assert step.number == self._first_step + self.num_steps
        self.num_steps += 1
        assert step.num_tokens <= self._limits.max_step_tokens
        assert len(step.chunks) <= self._limits.max_sequences
        assert len({chunk.slot for chunk in step.chunks}) == len(step.chunks)
        for slot in step.released_slots:
            del self.slots[slot]
        for opening in step.opened_slots:
            assert opening.slot not in self.slots
            assert 0 <= opening.slot < self._limits.max_sequences
            self.slots[opening.slot] = self._open(opening)
        self.num_tokens += step.num_tokens
        tokens = (self._run_chunk(chunk) for chunk in step.chunks)
        return tuple(token for token in tokens if token is not None)

    def _open(self, opening: SlotOpening) -> StageSlot:
        """A slot with the tokens that earlier steps cached."""
        blocks, token_ids = list(opening.cached_block_ids), opening.cached_token_ids
        slot = StageSlot(opening.sampling, blocks, len(token_ids))
        assert len(token_ids) == len(blocks) * self._limits.block_size
        assert len(set(blocks)) == len(blocks)
        held = [self._kv[self._place(slot, position)] for position in range(len(token_ids))]
        assert held == list(token_ids), "the cache holds other tokens than stated"
        return slot

    def _run_chunk(self, chunk: SequenceChunk) -> SampledToken | None:
        slot = self.slots[chunk.slot]
        assert chunk.token_ids
        assert chunk.position == slot.num_tokens
        taken = {block for other in self.slots.values() for block in other.block_table}
        assert len(set(chunk.new_block_ids)) == len(chunk.new_block_ids)
        assert taken.isdisjoint(chunk.new_block_ids)
        assert all(0 <= block < self._limits.num_blocks for block in chunk.new_block_ids)
        slot.block_table.extend(chunk.new_block_ids)
        for block in chunk.new_block_ids:
            for offset in range(self._limits.block_size):
                self._kv.pop((block, offset), None)
        for token_id in chunk.token_ids:
            self._kv[self._place(slot, slot.num_tokens)] = token_id
            slot.num_tokens += 1
        assert slot.num_tokens < self._limits.max_model_len
        if not chunk.sample:
            return None
        context = [self._kv[self._place(slot, position)] for position in range(slot.num_tokens)]
        return SampledToken(chunk.slot, draw(context, slot.sampling.seed))

    def _place(self, slot: StageSlot, position: int) -> tuple[int, int]:
        block, offset = divmod(position, self._limits.block_size)
        return slot.block_table[block], offset
