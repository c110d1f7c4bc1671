"""What a stage without a model keeps of its open slots, and what it asserts of the steps."""

import asyncio

from runtime.protocol.step import SlotSampling, Step


class Slots:
    """The stage's state: the tokens and blocks of every open slot."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.blocks: dict[int, list[int]] = {}
        self.sampling: dict[int, SlotSampling] = {}
        # How every sequence so far is drawn, in the order in which they came.
        self.samplings: list[SlotSampling] = []
        # Set once slots were open and all of them are released.
        self.emptied = asyncio.Event()

    def apply(self, step: Step) -> list[int]:
        """Takes a step in as a stage must; returns the slots that sample."""
        for slot in step.released_slots:
            del self.tokens[slot], self.blocks[slot], self.sampling[slot]
        if step.released_slots and not self.tokens:
            self.emptied.set()
        for opening in step.opened_slots:
            assert opening.slot not in self.tokens, f"slot {opening.slot} is open"
            self.tokens[opening.slot] = list(opening.cached_token_ids)
            self.blocks[opening.slot] = list(opening.cached_block_ids)
            self.samplings.append(opening.sampling)
            self.sampling[opening.slot] = opening.sampling
        for chunk in step.chunks:
            tokens = self.tokens[chunk.slot]
            assert chunk.position == len(tokens), f"slot {chunk.slot}: gap at {chunk.position}"
            tokens.extend(chunk.token_ids)
            held = {block for blocks in self.blocks.values() for block in blocks}
            assert held.isdisjoint(chunk.new_block_ids), "a block that is in use is written"
            self.blocks[chunk.slot].extend(chunk.new_block_ids)
        return [chunk.slot for chunk in step.chunks if chunk.sample]
