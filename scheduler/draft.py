"""Owns one microbatch in the making: its chunks, and what they will ask of the stages.

What goes into it is decided in `batching.py`.
"""

from collections.abc import Iterable
from itertools import chain

from runtime.step import SequenceChunk, SlotOpening, Step
from scheduler.feedback import StepWork
from scheduler.sequence import Residence, TrackedSequence
from scheduler.steps_in_flight import Score


class MicrobatchDraft:
    """A microbatch in the making; also what a policy sees of it (`MicrobatchView`)."""

    def __init__(self) -> None:
        self.chunks: list[SequenceChunk] = []
        self.openings: list[SlotOpening] = []
        # By slot, who gets a token of this step.
        self.draws: dict[int, Residence] = {}
        self.scores: list[Score] = []
        self.num_tokens = 0
        self._num_decodes = 0
        self._prefill_attention = 0
        self._decode_context = 0
        # By slot, whose prompts go on after this step.
        self._going_on: dict[int, Residence] = {}

    @property
    def members(self) -> Iterable[Residence]:
        """Those that it holds tokens of."""
        return chain(self.draws.values(), self._going_on.values())

    def __contains__(self, sequence: TrackedSequence) -> bool:
        residence = sequence.residence
        if residence is None:
            return False
        return residence.slot in self.draws or residence.slot in self._going_on

    def add_decode(self, residence: Residence, new_block_ids: tuple[int, ...] = ()) -> None:
        """Adds the newest token of a sequence, the only one of it that is unsent."""
        slot, position = residence.slot, residence.num_sent
        assert slot not in self.draws, f"slot {slot} is in twice"
        token_ids = (residence.sequence.token_ids[position],)
        self.chunks.append(SequenceChunk(slot, position, token_ids, new_block_ids, True))
        residence.num_sent = position + 1
        self.num_tokens += 1
        self._num_decodes += 1
        self._decode_context += position
        self.draws[slot] = residence

    def add_prompt(
        self, residence: Residence, num_tokens: int, new_block_ids: tuple[int, ...] = ()
    ) -> None:
        """Adds the next tokens of a prompt, which count as sent from here on."""
        sequence, slot = residence.sequence, residence.slot
        assert sequence not in self, f"sequence {sequence.sequence_id} is in twice"
        start, end = residence.num_sent, residence.num_sent + num_tokens
        samples = end == len(sequence.token_ids)
        token_ids = tuple(sequence.token_ids[start:end])
        positions = sequence.scored_positions(start, end)
        following = sequence.token_ids[end] if positions and positions[-1] == end else None
        self.chunks.append(SequenceChunk(slot, start, token_ids, new_block_ids, samples, following))
        residence.num_sent = end
        self.num_tokens += num_tokens
        if num_tokens == 1:
            self._num_decodes += 1
            self._decode_context += start
        else:
            self._prefill_attention += num_tokens * (2 * start + num_tokens)
        (self.draws if samples else self._going_on)[slot] = residence
        if positions:
            self.scores.append(Score(residence, positions))

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
