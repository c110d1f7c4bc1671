"""Owns one microbatch in the making: its chunks, and what they will ask of the stages.

What goes into it is decided in `batching.py`.
"""

from collections.abc import Iterable

from runtime.step import SequenceChunk, SlotOpening, Step
from scheduler.feedback import StepWork
from scheduler.sequence import TrackedSequence
from scheduler.steps_in_flight import Draw, Score


class MicrobatchDraft:
    """A microbatch in the making; also what a policy sees of it (`MicrobatchView`)."""

    def __init__(self) -> None:
        self.chunks: list[SequenceChunk] = []
        self.openings: list[SlotOpening] = []
        self.draws: list[Draw] = []
        self.scores: list[Score] = []
        self.num_tokens = 0
        self._num_decodes = 0
        self._prefill_attention = 0
        self._decode_context = 0
        self._members: dict[int, TrackedSequence] = {}

    @property
    def members(self) -> Iterable[TrackedSequence]:
        """The sequences that it holds tokens of."""
        return self._members.values()

    def __contains__(self, sequence: TrackedSequence) -> bool:
        return sequence.sequence_id in self._members

    def add(
        self, sequence: TrackedSequence, num_tokens: int, new_block_ids: tuple[int, ...] = ()
    ) -> None:
        """Adds the next tokens of a sequence, which count as sent from here on."""
        residence = sequence.residence
        assert residence is not None, f"sequence {sequence.sequence_id} has no slot"
        sequence_id = sequence.sequence_id
        assert sequence_id not in self._members, f"sequence {sequence_id} is in twice"
        start, end = residence.num_sent, residence.num_sent + num_tokens
        samples = end == len(sequence.token_ids)
        token_ids = tuple(sequence.token_ids[start:end])
        positions = sequence.scored_positions(start, end)
        following = sequence.token_ids[end] if positions and positions[-1] == end else None
        self.chunks.append(
            SequenceChunk(residence.slot, start, token_ids, new_block_ids, samples, following)
        )
        residence.num_sent = end
        self.num_tokens += num_tokens
        if num_tokens == 1:
            self._num_decodes += 1
            self._decode_context += start
        else:
            self._prefill_attention += num_tokens * (2 * start + num_tokens)
        self._members[sequence_id] = sequence
        if samples:
            self.draws.append(Draw(sequence, residence))
        if positions:
            self.scores.append(Score(sequence, residence, positions))

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
