"""Partitions decodes among the microbatches in flight by predicted cost, longest context first.

Decodes of one microbatch become ready together, so a partition lasts until sequences come or go.
Only then are more ready than one microbatch's share, and those are partitioned again.
"""

import heapq
from collections.abc import Sequence

from scheduler.policies.interface import SchedulerView, SequenceView, even_share


def partition_decodes(
    view: SchedulerView, num_microbatches: int, token_seconds: float, context_seconds: float
) -> Sequence[SequenceView]:
    """The ready decodes of the next microbatch, at most an even share in number.

    A decode costs `token_seconds` and `context_seconds` for each position before it. Longest
    processing time first (Graham, 1969): each goes to the cheapest of the microbatches that can
    still be sent.
    """
    share = even_share(view, num_microbatches)
    num_free = max(1, num_microbatches - view.num_steps_in_flight)
    if len(view.ready) <= share:
        return view.ready
    if num_free == 1:
        return view.ready[:share]  # the longest waiting, so that none is skipped twice
    longest_first = sorted(
        view.ready, key=lambda sequence: (-sequence.num_sent, sequence.sequence_id)
    )
    microbatches: list[list[SequenceView]] = [[] for _ in range(num_free)]
    cheapest = [(0.0, number) for number in range(num_free)]
    for sequence in longest_first:
        if not cheapest:
            break
        seconds, number = heapq.heappop(cheapest)
        microbatches[number].append(sequence)
        if len(microbatches[number]) < share:
            cost = token_seconds + context_seconds * sequence.num_sent
            heapq.heappush(cheapest, (seconds + cost, number))
    return microbatches[0]
