"""Numbers steps and checks their results against what was requested.

A sent step is never withdrawn: its record is kept until its result comes, even if its sequences
end before.
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
    """Prompt positions that a step scores for one allocation."""

    allocation: SlotAllocation
    positions: range


NUM_DONE_KEPT = 32
"""Completed steps whose records are kept: stages report timings on separate streams, so late."""


class StepsInFlight:
    """The steps of one epoch without a result, oldest first."""

    def __init__(self, first_number: int = 0) -> None:
        # Per step, the allocations that sample a token, by slot.
        self._samples_of_step: deque[Mapping[int, SlotAllocation]] = deque()
        # By step in flight; most steps score nothing.
        self._scores: dict[int, tuple[Score, ...]] = {}
        self._sent: dict[int, SentStep] = {}
        self._next_number = first_number

    def __len__(self) -> int:
        return len(self._samples_of_step)

    @property
    def next_number(self) -> int:
        """The number of the next step to send."""
        return self._next_number

    def send(
        self,
        samples: Mapping[int, SlotAllocation],
        scores: Sequence[Score],
        work: StepWork,
        now: float,
        max_in_flight: int,
    ) -> None:
        """Records that the next step was sent, with its samples by slot and its scores.

        `max_in_flight` is the policy's limit.
        """
        if scores:
            self._scores[self._next_number] = tuple(scores)
        is_full = len(self) + 1 >= max_in_flight
        self._sent[self._next_number] = SentStep(self._next_number, work, now, len(self), is_full)
        self._sent.pop(self._next_number - len(self) - NUM_DONE_KEPT, None)
        self._samples_of_step.append(samples)
        self._next_number += 1

    def steps(self) -> tuple[SentStep, ...]:
        """The steps without a result, oldest first."""
        numbers = range(self._next_number - len(self), self._next_number)
        return tuple(self._sent[number] for number in numbers)

    def sent(self, number: int) -> SentStep | None:
        """A step in flight or recently completed; None for any other number."""
        return self._sent.get(number)

    def scored(
        self, number: int, scored: Sequence[ScoredToken]
    ) -> list[tuple[TrackedSequence, tuple[ScoredToken, ...]]]:
        """Records the scores of a step in flight; returns the tokens of live allocations.

        Raises FrameError unless the positions are exactly the requested ones, in order.
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
        """Records the result of the oldest step; returns its tokens, also of ended sequences.

        Raises StepGapError for any other step and FrameError unless the tokens are exactly the
        requested ones; an error changes nothing.
        """
        expected_number = self._next_number - len(self)
        if number != expected_number or not self._samples_of_step:
            raise StepGapError(expected=expected_number, actual=number)
        samples = self._samples_of_step[0]
        slots = [token.slot for token in sampled]
        if slots != list(samples):  # normally in order
            if sorted(slots) != sorted(samples):
                raise FrameError(
                    what=f"slots sampled by step {number}",
                    expected=tuple(sorted(samples)),
                    actual=tuple(sorted(slots)),
                )
            tokens = dict(zip(slots, sampled, strict=True))
            sampled = [tokens[slot] for slot in samples]
        self._samples_of_step.popleft()
        return zip(samples.values(), sampled, strict=True)

    def awaited(self) -> list[TrackedSequence]:
        """The sequences with a token in flight, sorted by id."""
        samples = [each for step in self._samples_of_step for each in step.values() if each.is_live]
        return sorted((each.sequence for each in samples), key=lambda waiting: waiting.sequence_id)
