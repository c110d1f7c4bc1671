"""Tracks the phase of each unfinished sequence, and the order within a phase.

Every queue except the waiting queue is a dict in order of entry, so removal is O(1).
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from scheduler.sequences.sequence import SequencePhase, TrackedSequence
from scheduler.sequences.waiting_queue import FairShare, WaitingQueue

ENTERED_FROM: dict[SequencePhase, frozenset[SequencePhase]] = {
    SequencePhase.WAITING: frozenset(
        {SequencePhase.PREFILL, SequencePhase.SAMPLING, SequencePhase.READY}
    ),  # preempted
    SequencePhase.PREFILL: frozenset({SequencePhase.WAITING}),
    SequencePhase.SAMPLING: frozenset({SequencePhase.PREFILL, SequencePhase.READY}),
    SequencePhase.READY: frozenset({SequencePhase.SAMPLING}),
}


class SequenceQueues:
    """The waiting queue, and one queue for each of the other phases."""

    def __init__(self, shares: FairShare) -> None:
        # The only sequence that may be admitted; None: all may.
        self.isolated_id: int | None = None
        self._waiting = WaitingQueue(shares)
        self._queues: dict[SequencePhase, dict[int, TrackedSequence]] = {
            phase: {} for phase in SequencePhase if phase is not SequencePhase.WAITING
        }
        # Sequences whose newest token may be sent, by id in order of entry.
        self.ready: Mapping[int, TrackedSequence] = self._queues[SequencePhase.READY]

    def add(self, sequence: TrackedSequence) -> None:
        """Enqueues a new sequence as waiting."""
        sequence.phase = SequencePhase.WAITING
        self._waiting.add(sequence)

    def move(self, sequence: TrackedSequence, phase: SequencePhase) -> None:
        """Moves a sequence to another phase."""
        assert sequence.phase in ENTERED_FROM[phase], (
            f"sequence {sequence.sequence_id} cannot go from {sequence.phase!r} to {phase!r}"
        )
        self.remove(sequence)
        sequence.phase = phase
        if phase is SequencePhase.WAITING:
            self._waiting.add(sequence)
        else:
            self._queues[phase][sequence.sequence_id] = sequence

    def move_all(
        self, sequences: Iterable[TrackedSequence], before: SequencePhase, after: SequencePhase
    ) -> None:
        """Moves sequences that hold slots from one phase to another."""
        assert before in ENTERED_FROM[after], f"no way from {before!r} to {after!r}"
        source, target = self._queues[before], self._queues[after]
        for sequence in sequences:
            sequence_id = sequence.sequence_id
            del source[sequence_id]
            target[sequence_id] = sequence
            sequence.phase = after

    def remove(self, sequence: TrackedSequence) -> None:
        """Removes a sequence from its queue."""
        if sequence.phase is SequencePhase.WAITING:
            self._waiting.remove(sequence)
        else:
            del self._queues[sequence.phase][sequence.sequence_id]

    def of(self, phase: SequencePhase) -> tuple[TrackedSequence, ...]:
        """The sequences of one phase that hold a slot, in order of entry."""
        return tuple(self._queues[phase].values())

    def by_urgency(self, phase: SequencePhase) -> list[TrackedSequence]:
        """The sequences of one phase that hold a slot, the most urgent first."""
        return sorted(self._queues[phase].values(), key=lambda sequence: sequence.urgency_key)

    def next_waiting(self, now: float, most: int) -> tuple[TrackedSequence, ...]:
        """The first `most` waiting sequences, in the order of admission."""
        waiting = self._waiting.in_order(now) if self._waiting else iter(())
        if self.isolated_id is not None:
            waiting = (sequence for sequence in waiting if sequence.sequence_id == self.isolated_id)
        return tuple(islice(waiting, most))

    def count(self, phase: SequencePhase) -> int:
        """The number of sequences in a phase."""
        return len(self._waiting) if phase is SequencePhase.WAITING else len(self._queues[phase])

    def running(self) -> list[TrackedSequence]:
        """All sequences that hold a slot."""
        return [sequence for queue in self._queues.values() for sequence in queue.values()]

    def check_integrity(self) -> None:
        """Asserts that every sequence is in the queue of its phase and fits that phase."""
        self._waiting.check_integrity()
        queues = {phase: tuple(queue.values()) for phase, queue in self._queues.items()}
        queues[SequencePhase.WAITING] = tuple(self._waiting)
        ids = [sequence.sequence_id for queue in queues.values() for sequence in queue]
        assert len(ids) == len(set(ids)), f"a sequence is in two queues: {sorted(ids)}"
        for phase, queue in queues.items():
            for sequence in queue:
                name = f"sequence {sequence.sequence_id} in {phase.name}"
                assert sequence.phase is phase, f"{name} has phase {sequence.phase.name}"
                has_slot = sequence.allocation is not None
                assert has_slot is (phase is not SequencePhase.WAITING), (
                    f"{name}: slot is {has_slot}"
                )
                assert len(sequence.token_ids) < sequence.final_len, f"{name} should have ended"
                _check_unsent(name, phase, sequence.num_unsent)


def _check_unsent(name: str, phase: SequencePhase, num_unsent: int) -> None:
    fits = {
        SequencePhase.WAITING: num_unsent >= 1,
        SequencePhase.PREFILL: num_unsent >= 1,
        SequencePhase.SAMPLING: num_unsent == 0,
        SequencePhase.READY: num_unsent == 1,
    }
    assert fits[phase], f"{name} has {num_unsent} tokens to send"
