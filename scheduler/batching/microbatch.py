"""A microbatch draft: its chunks, and the work that they require of a stage.

`batcher.py` decides its contents.
"""

from collections.abc import Mapping, Sequence

from runtime.protocol.step import SequenceChunk, SlotOpening, Step, make_rows
from scheduler.batching.steps_in_flight import Score
from scheduler.cost_model.feedback import StepWork
from scheduler.sequences.sequence import SlotAllocation, TrackedSequence


class MicrobatchDraft:
    """A microbatch draft; policies see it as `MicrobatchView`."""

    def __init__(self) -> None:
        self.chunks: list[SequenceChunk] = []
        self.openings: list[SlotOpening] = []
        # Allocations that sample a token in this step, by slot.
        self.samples: dict[int, SlotAllocation] = {}
        self.scores: list[Score] = []
        self.num_tokens = 0
        self._num_decodes = 0
        self._prefill_attention = 0
        self._decode_context = 0
        # Allocations whose prompts continue after this step, by slot.
        self._continuing: dict[int, SlotAllocation] = {}
        # Allocations that may fill blocks in this step.
        self.filling: list[SlotAllocation] = []

    def __contains__(self, sequence: TrackedSequence) -> bool:
        allocation = sequence.allocation
        if allocation is None:
            return False
        return allocation.slot in self.samples or allocation.slot in self._continuing

    def add_decodes(
        self, allocations: Sequence[SlotAllocation], grown: Mapping[int, tuple[int, ...]]
    ) -> None:
        """Adds the newest token, the only unsent one, of each allocation in `samples`.

        `grown` holds new blocks by slot.
        """
        rows, context = [], 0
        for allocation in allocations:
            slot, position = allocation.slot, allocation.num_sent
            token_ids = (allocation.sequence.token_ids[position],)
            rows.append((slot, position, token_ids, grown.get(slot, ()), True, None))
            context += position
            allocation.num_sent = position + 1
            if allocation.num_sent == allocation.capacity:
                self.filling.append(allocation)
        self.chunks.extend(make_rows(SequenceChunk, rows))
        self.num_tokens += len(allocations)
        self._num_decodes += len(allocations)
        self._decode_context += context

    def add_prompt(
        self, allocation: SlotAllocation, num_tokens: int, new_block_ids: tuple[int, ...] = ()
    ) -> None:
        """Adds the next tokens of a prompt, which then count as sent."""
        sequence, slot = allocation.sequence, allocation.slot
        assert sequence not in self, f"sequence {sequence.sequence_id} is added twice"
        start, end = allocation.num_sent, allocation.num_sent + num_tokens
        is_last_chunk = end == len(sequence.token_ids)
        token_ids = tuple(sequence.token_ids[start:end])
        positions = sequence.scored_positions(start, end)
        following = sequence.token_ids[end] if positions and positions[-1] == end else None
        self.chunks.append(
            SequenceChunk(slot, start, token_ids, new_block_ids, is_last_chunk, following)
        )
        allocation.num_sent = end
        self.num_tokens += num_tokens
        if num_tokens == 1:
            self._num_decodes += 1
            self._decode_context += start
        else:
            self._prefill_attention += num_tokens * (2 * start + num_tokens)
        (self.samples if is_last_chunk else self._continuing)[slot] = allocation
        self.filling.append(allocation)
        if positions:
            self.scores.append(Score(allocation, positions))

    @property
    def work(self) -> StepWork:
        """The work that the draft requires of a stage so far."""
        return StepWork(
            num_tokens=self.num_tokens,
            num_decodes=self._num_decodes,
            prefill_attention=self._prefill_attention,
            decode_context=self._decode_context,
            num_sequences=len(self.chunks),
            num_sampled=len(self.samples),
        )

    def to_step(self, number: int, released_slots: tuple[int, ...]) -> Step:
        return Step(number, released_slots, tuple(self.openings), tuple(self.chunks))
