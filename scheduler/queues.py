"""Owns which phase each unfinished sequence is in, and the order within a phase.

Every queue is a dict in order of entry, so that leaving from the middle costs nothing.
"""

from scheduler.sequence import Phase, TrackedSequence

ENTERED_FROM: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.PREFILL, Phase.SAMPLING, Phase.READY}),  # preempted
    Phase.PREFILL: frozenset({Phase.WAITING}),
    Phase.SAMPLING: frozenset({Phase.PREFILL, Phase.READY}),
    Phase.READY: frozenset({Phase.SAMPLING}),
}


class SequenceQueues:
    """One queue per phase. WAITING is first come first, the others in order of entry."""

    def __init__(self) -> None:
        # The one sequence that may get a slot; None: every one may.
        self.alone: int | None = None
        self._queues: dict[Phase, dict[int, TrackedSequence]] = {phase: {} for phase in Phase}

    def add(self, sequence: TrackedSequence) -> None:
        """Takes in a new sequence, which waits."""
        sequence.phase = Phase.WAITING
        self._enter(sequence)

    def move(self, sequence: TrackedSequence, phase: Phase) -> None:
        """Puts a sequence into another phase."""
        assert sequence.phase in ENTERED_FROM[phase], (
            f"sequence {sequence.sequence_id} cannot go from {sequence.phase!r} to {phase!r}"
        )
        self.remove(sequence)
        sequence.phase = phase
        self._enter(sequence)

    def remove(self, sequence: TrackedSequence) -> None:
        """Forgets a sequence."""
        del self._queues[sequence.phase][sequence.sequence_id]

    def of(self, phase: Phase) -> tuple[TrackedSequence, ...]:
        """The sequences of one phase, in order."""
        return tuple(self._queues[phase].values())

    def admissible(self) -> tuple[TrackedSequence, ...]:
        """The waiting sequences that may get a slot, in order."""
        waiting = self.of(Phase.WAITING)
        if self.alone is None:
            return waiting
        return tuple(each for each in waiting if each.sequence_id == self.alone)

    def count(self, phase: Phase) -> int:
        """How many sequences are in a phase."""
        return len(self._queues[phase])

    def running(self) -> list[TrackedSequence]:
        """All sequences that hold a slot."""
        phases = (Phase.PREFILL, Phase.SAMPLING, Phase.READY)
        return [sequence for phase in phases for sequence in self._queues[phase].values()]

    def _enter(self, sequence: TrackedSequence) -> None:
        queue = self._queues[sequence.phase]
        newest = None
        if sequence.phase is Phase.WAITING:
            newest = next(reversed(queue.values()), None)
        queue[sequence.sequence_id] = sequence
        if newest is not None and sequence.age_key < newest.age_key:
            ordered = sorted(queue.values(), key=lambda waiting: waiting.age_key)
            self._queues[sequence.phase] = {waiting.sequence_id: waiting for waiting in ordered}

    def check_integrity(self) -> None:
        """Asserts that every sequence is in the queue of its phase and fits that phase."""
        ids = [sequence_id for queue in self._queues.values() for sequence_id in queue]
        assert len(ids) == len(set(ids)), f"a sequence is in two queues: {sorted(ids)}"
        keys = [sequence.age_key for sequence in self.of(Phase.WAITING)]
        assert keys == sorted(keys), f"waiting out of order: {keys}"
        for phase, queue in self._queues.items():
            for sequence_id, sequence in queue.items():
                name = f"sequence {sequence_id} in {phase.name}"
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
