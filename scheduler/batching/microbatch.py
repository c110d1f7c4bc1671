"""Owns one microbatch in the making: its chunks, and what they will ask of the stages.

What goes into it is decided in `batching.py`.
"""

from collections.abc import Mapping, Sequence

from runtime.protocol.step import SequenceChunk, SlotOpening, Step, make_rows
from scheduler.batching.steps_in_flight import Score
from scheduler.cost_model.feedback import StepWork
from scheduler.sequences.sequence import SlotAllocation, TrackedSequence


class MicrobatchDraft:
    """A microbatch in the making; also what a policy sees of it (`MicrobatchView`)."""

    def __init__(self) -> None:
        self.chunks: list[SequenceChunk] = []
        self.openings: list[SlotOpening] = []
        # By slot, who gets a token of this step.
        self.draws: dict[int, SlotAllocation] = {}
        self.scores: list[Score] = []
        self.num_tokens = 0
        self._num_decodes = 0
        self._prefill_attention = 0
        self._decode_context = 0
        # By slot, whose prompts go on after this step.
        self._going_on: dict[int, SlotAllocation] = {}
        # Who has more full blocks with this step than before, or may have.
        self.fillers: list[SlotAllocation] = []

    def __contains__(self, sequence: TrackedSequence) -> bool:
        allocation = sequence.allocation
        if allocation is None:
            return False
        return allocation.slot in self.draws or allocation.slot in self._going_on

    def add_decodes(
        self, allocations: Sequence[SlotAllocation], grown: Mapping[int, tuple[int, ...]]
    ) -> None:
        """Adds the newest token of each, the only one of it that is unsent.

        They stand in `draws` already. `grown` has the new blocks of those that have any, by slot.
        """
        rows, context = [], 0
        for allocation in allocations:
            slot, position = allocation.slot, allocation.num_sent
            token_ids = (allocation.sequence.token_ids[position],)
            rows.append((slot, position, token_ids, grown.get(slot, ()), True, None))
            context += position
            allocation.num_sent = position + 1
            if allocation.num_sent == allocation.capacity:
                self.fillers.append(allocation)
        self.chunks.extend(make_rows(SequenceChunk, rows))
        self.num_tokens += len(allocations)
        self._num_decodes += len(allocations)
        self._decode_context += context

    def add_prompt(
        self, allocation: SlotAllocation, num_tokens: int, new_block_ids: tuple[int, ...] = ()
    ) -> None:
        """Adds the next tokens of a prompt, which count as sent from here on."""
        sequence, slot = allocation.sequence, allocation.slot
        assert sequence not in self, f"sequence {sequence.sequence_id} is in twice"
        start, end = allocation.num_sent, allocation.num_sent + num_tokens
        samples = end == len(sequence.token_ids)
        token_ids = tuple(sequence.token_ids[start:end])
        positions = sequence.scored_positions(start, end)
        following = sequence.token_ids[end] if positions and positions[-1] == end else None
        self.chunks.append(SequenceChunk(slot, start, token_ids, new_block_ids, samples, following))
        allocation.num_sent = end
        self.num_tokens += num_tokens
        if num_tokens == 1:
            self._num_decodes += 1
            self._decode_context += start
        else:
            self._prefill_attention += num_tokens * (2 * start + num_tokens)
        (self.draws if samples else self._going_on)[slot] = allocation
        self.fillers.append(allocation)
        if positions:
            self.scores.append(Score(allocation, positions))

    @property
    def work(self) -> StepWork:
        """What it asks of a stage so far."""
        return StepWork(
            num_tokens=self.num_tokens,
            num_decodes=self._num_decodes,
            prefill_attention=self._prefill_attention,
            decode_context=self._decode_context,
            num_sequences=len(self.chunks),
            num_sampled=len(self.draws),
        )

    def to_step(self, number: int, released_slots: tuple[int, ...]) -> Step:
        """The finished step."""
        return Step(number, released_slots, tuple(self.openings), tuple(self.chunks))
