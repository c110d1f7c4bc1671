"""Selects the sequence to preempt for a more urgent one: the eviction rule. It releases nothing.

The order is lowest priority, then latest deadline, then fewest computed tokens.
"""

from collections.abc import Iterable

from scheduler.batching.microbatch import MicrobatchDraft
from scheduler.sequences.sequence import TrackedSequence


class PreemptionCandidates:
    """The preemption candidates of one microbatch, sorted once.

    Sequences in the microbatch are excluded; the next microbatch may preempt them. So the most
    urgent sequence always makes progress.
    """

    def __init__(self, running: Iterable[TrackedSequence], draft: MicrobatchDraft) -> None:
        self._draft = draft
        # The first to preempt is the last element.
        self._candidates = sorted(running, key=_preemption_key)

    def pop(self, beneficiary: TrackedSequence) -> TrackedSequence | None:
        """Removes and returns the best candidate that is less urgent; None if there is none."""
        skipped = []
        found = None
        while self._candidates and found is None:
            candidate = self._candidates.pop()
            if candidate.allocation is None or candidate in self._draft:
                continue  # excluded from this microbatch
            if candidate.urgency_key > beneficiary.urgency_key:
                found = candidate
                continue
            skipped.append(candidate)
            if _coarse_urgency(candidate) < _coarse_urgency(beneficiary):
                break  # the others are at least as urgent
        self._candidates += reversed(skipped)
        return found


def _coarse_urgency(sequence: TrackedSequence) -> tuple[int, int]:
    """Priority and deadline; deadlines within the same second count as equal."""
    return sequence.rank, int(sequence.due_key[0])


def _preemption_key(sequence: TrackedSequence) -> tuple[int, int, int]:
    return (*_coarse_urgency(sequence), -sequence.num_sent)
