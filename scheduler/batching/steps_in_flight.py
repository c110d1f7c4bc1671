"""Owns the numbering of steps and what is still expected of those that were sent.

A step that was sent is never withdrawn, so its record stays until its result comes, whatever
happens to its sequences meanwhile.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from runtime.errors import FrameError, StepGapError
from runtime.protocol.step import SampledToken, ScoredToken
from scheduler.cost_model.feedback import SentStep, StepWork
from scheduler.sequences.sequence import SlotAllocation, TrackedSequence


@dataclass(frozen=True, slots=True)
class Score:
    """Positions of a prompt that a step scores: whose, in which of its residences."""

    allocation: SlotAllocation
    positions: range


NUM_DONE_KEPT = 32
"""Stages tell their times by streams of their own, so some come after the step's result."""


class StepsInFlight:
    """The steps of one epoch whose result has not come, oldest first."""

    def __init__(self, first_number: int = 0) -> None:
        # By slot, who gets a token of each of them.
        self._draws_of_step: deque[Mapping[int, SlotAllocation]] = deque()
        # By step, as long as it is in flight; most have none.
        self._scores: dict[int, tuple[Score, ...]] = {}
        self._sent: dict[int, SentStep] = {}
        self._next_number = first_number

    def __len__(self) -> int:
        return len(self._draws_of_step)

    @property
    def next_number(self) -> int:
        """The number of the step to be sent next."""
        return self._next_number

    def send(
        self,
        draws: Mapping[int, SlotAllocation],
        scores: Sequence[Score],
        work: StepWork,
        now: float,
        most: int,
    ) -> None:
        """Notes that the next step was sent, for whom it draws, by slot, and what it scores.

        `most` may be in flight.
        """
        if scores:
            self._scores[self._next_number] = tuple(scores)
        is_full = len(self) + 1 >= most
        self._sent[self._next_number] = SentStep(self._next_number, work, now, len(self), is_full)
        self._sent.pop(self._next_number - len(self) - NUM_DONE_KEPT, None)
        self._draws_of_step.append(draws)
        self._next_number += 1

    def steps(self) -> tuple[SentStep, ...]:
        """Those whose result has not come, oldest first."""
        numbers = range(self._next_number - len(self), self._next_number)
        return tuple(self._sent[number] for number in numbers)

    def sent(self, number: int) -> SentStep | None:
        """A step in flight or lately done; None for one that is too long ago, or never was."""
        return self._sent.get(number)

    def scored(
        self, number: int, scored: Sequence[ScoredToken]
    ) -> list[tuple[TrackedSequence, tuple[ScoredToken, ...]]]:
        """Takes what a step in flight scored; returns the tokens of live residences.

        Raises FrameError unless exactly the positions came that it was to score, in their order.
        """
        scores = self._scores.pop(number, ())
        expected = [(each.allocation.slot, place) for each in scores for place in each.positions]
        actual = [(token.slot, token.position) for token in scored]
        if expected != actual:
            what = f"positions scored by step {number}"
            raise FrameError(what=what, expected=len(expected), actual=len(actual))
        tokens = iter(scored)
        found = [(each, tuple(islice(tokens, len(each.positions)))) for each in scores]
        return [(each.allocation.sequence, its) for each, its in found if each.allocation.is_live]

    def complete(
        self, number: int, sampled: Sequence[SampledToken]
    ) -> Iterable[tuple[SlotAllocation, SampledToken]]:
        """Takes the result of the oldest step; returns the tokens, also of those gone meanwhile.

        Raises StepGapError for any other step and FrameError unless exactly the tokens that it was
        to draw came; then nothing has changed.
        """
        expected_number = self._next_number - len(self)
        if number != expected_number or not self._draws_of_step:
            raise StepGapError(expected=expected_number, actual=number)
        draws = self._draws_of_step[0]
        slots = [token.slot for token in sampled]
        if slots != list(draws):  # mostly they come in order
            if sorted(slots) != sorted(draws):
                raise FrameError(
                    what=f"slots sampled by step {number}",
                    expected=tuple(sorted(draws)),
                    actual=tuple(sorted(slots)),
                )
            tokens = dict(zip(slots, sampled, strict=True))
            sampled = [tokens[slot] for slot in draws]
        self._draws_of_step.popleft()
        return zip(draws.values(), sampled, strict=True)

    def awaited(self) -> list[TrackedSequence]:
        """The sequences that get a token from a step in flight, sorted by id."""
        draws = [each for step in self._draws_of_step for each in step.values() if each.is_live]
        return sorted((each.sequence for each in draws), key=lambda waiting: waiting.sequence_id)
