"""Owns which phase each unfinished sequence is in, and the order within a phase.

Every queue but the waiting line is a dict in order of entry, so that leaving from the middle costs
nothing.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from scheduler.sequences.sequence import Phase, TrackedSequence
from scheduler.sequences.tenant_fairness import FairShare
from scheduler.sequences.waiting_queue import WaitingLine

ENTERED_FROM: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.PREFILL, Phase.SAMPLING, Phase.READY}),  # preempted
    Phase.PREFILL: frozenset({Phase.WAITING}),
    Phase.SAMPLING: frozenset({Phase.PREFILL, Phase.READY}),
    Phase.READY: frozenset({Phase.SAMPLING}),
}


class SequenceQueues:
    """The waiting line, and one queue for each of the other phases."""

    def __init__(self, shares: FairShare) -> None:
        # The one sequence that may get a slot; None: every one may.
        self.alone: int | None = None
        self._waiting = WaitingLine(shares)
        self._queues: dict[Phase, dict[int, TrackedSequence]] = {
            phase: {} for phase in Phase if phase is not Phase.WAITING
        }
        # Whose newest token may be sent, by id in order of entry.
        self.ready: Mapping[int, TrackedSequence] = self._queues[Phase.READY]

    def add(self, sequence: TrackedSequence) -> None:
        """Takes in a new sequence, which waits."""
        sequence.phase = Phase.WAITING
        self._waiting.add(sequence)

    def move(self, sequence: TrackedSequence, phase: Phase) -> None:
        """Puts a sequence into another phase."""
        assert sequence.phase in ENTERED_FROM[phase], (
            f"sequence {sequence.sequence_id} cannot go from {sequence.phase!r} to {phase!r}"
        )
        self.remove(sequence)
        sequence.phase = phase
        if phase is Phase.WAITING:
            self._waiting.add(sequence)
        else:
            self._queues[phase][sequence.sequence_id] = sequence

    def move_all(self, sequences: Iterable[TrackedSequence], before: Phase, after: Phase) -> None:
        """Puts sequences that hold slots from one phase into another."""
        assert before in ENTERED_FROM[after], f"no way from {before!r} to {after!r}"
        source, target = self._queues[before], self._queues[after]
        for sequence in sequences:
            sequence_id = sequence.sequence_id
            del source[sequence_id]
            target[sequence_id] = sequence
            sequence.phase = after

    def remove(self, sequence: TrackedSequence) -> None:
        """Forgets a sequence."""
        if sequence.phase is Phase.WAITING:
            self._waiting.remove(sequence)
        else:
            del self._queues[sequence.phase][sequence.sequence_id]

    def of(self, phase: Phase) -> tuple[TrackedSequence, ...]:
        """The sequences of one phase that hold a slot, in order of entry."""
        return tuple(self._queues[phase].values())

    def by_urgency(self, phase: Phase) -> list[TrackedSequence]:
        """The same, the most urgent first."""
        return sorted(self._queues[phase].values(), key=lambda sequence: sequence.urgency_key)

    def next_in_line(self, now: float, most: int) -> tuple[TrackedSequence, ...]:
        """The waiting sequences that get a slot first, at most so many, in that order."""
        line = self._waiting.in_order(now) if self._waiting else iter(())
        if self.alone is not None:
            line = (sequence for sequence in line if sequence.sequence_id == self.alone)
        return tuple(islice(line, most))

    def count(self, phase: Phase) -> int:
        """How many sequences are in a phase."""
        return len(self._waiting) if phase is Phase.WAITING else len(self._queues[phase])

    def running(self) -> list[TrackedSequence]:
        """All sequences that hold a slot."""
        return [sequence for queue in self._queues.values() for sequence in queue.values()]

    def check_integrity(self) -> None:
        """Asserts that every sequence is in the queue of its phase and fits that phase."""
        self._waiting.check_integrity()
        queues = {phase: tuple(queue.values()) for phase, queue in self._queues.items()}
        queues[Phase.WAITING] = tuple(self._waiting)
        ids = [sequence.sequence_id for queue in queues.values() for sequence in queue]
        assert len(ids) == len(set(ids)), f"a sequence is in two queues: {sorted(ids)}"
        for phase, queue in queues.items():
            for sequence in queue:
                name = f"sequence {sequence.sequence_id} in {phase.name}"
                assert sequence.phase is phase, f"{name} says it is in {sequence.phase.name}"
                has_slot = sequence.residence is not None
                assert has_slot is (phase is not Phase.WAITING), f"{name}: slot is {has_slot}"
                assert len(sequence.token_ids) < sequence.final_len, f"{name} should have ended"
                _check_unsent(name, phase, sequence.num_unsent)


def _check_unsent(name: str, phase: Phase, num_unsent: int) -> None:
    fits = {
        Phase.WAITING: num_unsent >= 1,
        Phase.PREFILL: num_unsent >= 1,
        Phase.SAMPLING: num_unsent == 0,
        Phase.READY: num_unsent == 1,
    }
    assert fits[phase], f"{name} has {num_unsent} tokens to send"
