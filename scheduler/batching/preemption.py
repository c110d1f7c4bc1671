"""Decides who loses slot and blocks so that a more urgent sequence gets on. It takes nothing away.

The lowest class first, then the latest deadline, then the cheapest to compute again.
"""

from collections.abc import Iterable

from scheduler.batching.microbatch import MicrobatchDraft
from scheduler.sequences.sequence import TrackedSequence


class PreemptionCandidates:
    """Those that may be preempted for one microbatch, put in order once, when the first is needed.

    None that the microbatch holds is preempted, so the most urgent always gets on: whoever is less
    so and in this microbatch can be preempted by the next.
    """

    def __init__(self, running: Iterable[TrackedSequence], draft: MicrobatchDraft) -> None:
        self._draft = draft
        # The last goes first.
        self._line = sorted(running, key=_dispensability)

    def pop(self, beneficiary: TrackedSequence) -> TrackedSequence | None:
        """The first to go of those that are less urgent; None: there is nobody left."""
        spared = []
        found = None
        while self._line and found is None:
            candidate = self._line.pop()
            if candidate.residence is None or candidate in self._draft:
                continue  # until the next microbatch
            if candidate.urgency_key > beneficiary.urgency_key:
                found = candidate
                continue
            spared.append(candidate)
            if _class_and_second(candidate) < _class_and_second(beneficiary):
                break  # the others are at least as urgent
        self._line += reversed(spared)
        return found


def _class_and_second(sequence: TrackedSequence) -> tuple[int, int]:
    """Deadlines within a second of each other count as one."""
    return sequence.rank, int(sequence.due_key[0])


def _dispensability(sequence: TrackedSequence) -> tuple[int, int, int]:
    return (*_class_and_second(sequence), -sequence.num_sent)
