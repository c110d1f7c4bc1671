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
        self._candidates = sorted(running, key=_preemption_key)

    def pop(self, beneficiary: TrackedSequence) -> TrackedSequence | None:
        """The first to go of those that are less urgent; None: there is nobody left."""
        spared = []
        found = None
        while self._candidates and found is None:
            candidate = self._candidates.pop()
            if candidate.allocation is None or candidate in self._draft:
                continue  # until the next microbatch
            if candidate.urgency_key > beneficiary.urgency_key:
                found = candidate
                continue
            spared.append(candidate)
            if _coarse_urgency(candidate) < _coarse_urgency(beneficiary):
                break  # the others are at least as urgent
        self._candidates += reversed(spared)
        return found


def _coarse_urgency(sequence: TrackedSequence) -> tuple[int, int]:
    """Deadlines within a second of each other count as one."""
    return sequence.rank, int(sequence.due_key[0])


def _preemption_key(sequence: TrackedSequence) -> tuple[int, int, int]:
    return (*_coarse_urgency(sequence), -sequence.num_sent)
