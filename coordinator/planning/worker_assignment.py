"""Owns who carries out which assignment: the ranks of one stage on one host, weights kept.

Pure functions of the plan and the members. Ranks of one stage share memory, so their workers must
run on one node; different stages may be anywhere that the stages beside them reach.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain, count, groupby, pairwise, product, starmap
from typing import Final

from coordinator.membership.assignment import Assignment
from coordinator.membership.fault_scores import Link
from coordinator.membership.worker_record import WorkerRecord

# One stage's assignments, by rank; and who carries them out.
_Stage = tuple[Assignment, ...]
_Ranks = tuple[WorkerRecord, ...]

# A search among many workers that reach few others ends in time, with nothing found.
_MAX_SEARCH_STEPS: Final = 10_000


def assign_workers(
    assignments: Sequence[Assignment],
    workers: Sequence[WorkerRecord],
    broken: AbstractSet[Link] = frozenset(),
) -> tuple[WorkerRecord, ...] | None:
    """Who carries out which assignment; None while the members do not suffice.

    A stage goes first where most of it is loaded already, then to the host whose free worker joined
    first. Large stages choose before small ones (first-fit decreasing), which finds a place
    whenever there is one if all stages have as many ranks. Of those that have a part in tries that
    came to nothing, no more are taken than must be, those with the least blame first. Where that
    would send over a link in `broken`, others are taken, or the same in another order.
    """
    placed = _assign_by_fault_score(assignments, workers)
    if placed is None or broken.isdisjoint(links_of(assignments, placed)):
        return placed
    return _avoid_links(assignments, _computing(workers), broken)


def links_of(assignments: Sequence[Assignment], placed: Sequence[WorkerRecord]) -> Iterator[Link]:
    """Which worker sends to which in such a placement: every rank to every one of the next stage.

    Most ranks send to one of them only, but hosts that do not reach each other are what breaks.
    """
    workers = iter(placed)
    stages = [[next(workers) for _ in ranks] for ranks in _by_stage(assignments)]
    return chain.from_iterable(starmap(_links, pairwise(stages)))


def _links(senders: Sequence[WorkerRecord], receivers: Sequence[WorkerRecord]) -> Iterator[Link]:
    pairs = product(senders, receivers)
    return ((one.identity.worker_id, other.identity.worker_id) for one, other in pairs)


def _assign_by_fault_score(
    assignments: Sequence[Assignment], workers: Sequence[WorkerRecord]
) -> tuple[WorkerRecord, ...] | None:
    workers = _computing(workers)
    blamed = [worker for worker in workers if worker.is_deprioritized]
    blamed.sort(key=lambda worker: (*worker.fault_key, not _holds(worker, assignments)))
    usable = [worker for worker in workers if not worker.is_deprioritized]
    placed = _assign_ignoring_faults(assignments, usable)
    while placed is None and blamed:
        usable.append(blamed.pop(0))
        placed = _assign_ignoring_faults(assignments, usable)
    return placed


def _assign_ignoring_faults(
    assignments: Sequence[Assignment], workers: Sequence[WorkerRecord]
) -> tuple[WorkerRecord, ...] | None:
    """Likewise, whatever they are blamed for."""
    if len(workers) < len(assignments):
        return None
    stages = list(_by_stage(assignments))
    stages.sort(key=lambda ranks: (-_num_held(ranks, workers), -len(ranks)))
    # Who holds another stage's part is taken only where nobody else is free.
    free = sorted(workers, key=lambda each: (_holds(each, assignments), each.held is not None))
    placed: dict[Assignment, WorkerRecord] = {}
    for ranks in stages:
        hosts = sorted(_hosts(free), key=lambda host: -_num_held(ranks, host))
        host = next((host for host in hosts if len(host) >= len(ranks)), None)
        if host is None:
            return None
        chosen = _match_ranks(ranks, host)
        placed |= chosen
        free = [worker for worker in free if worker not in chosen.values()]
    return tuple(placed[assignment] for assignment in assignments)


def _avoid_links(
    assignments: Sequence[Assignment], workers: Sequence[WorkerRecord], broken: AbstractSet[Link]
) -> tuple[WorkerRecord, ...] | None:
    """Likewise, over no broken link: the first that is found, depth first, stage by stage."""
    stages = list(_by_stage(assignments))
    choices = [_groups(ranks, workers, broken) for ranks in stages]
    steps = count()

    def extend(path: tuple[_Ranks, ...]) -> tuple[_Ranks, ...] | None:
        if len(path) == len(stages):
            return path
        taken = set(chain.from_iterable(path))
        for group in choices[len(path)]:
            if next(steps) >= _MAX_SEARCH_STEPS:
                return None
            before = path[-1] if path else ()
            if taken.isdisjoint(group) and broken.isdisjoint(_links(before, group)):
                longer = extend((*path, group))
                if longer is not None:
                    return longer
        return None

    found = extend(())
    return None if found is None else tuple(chain.from_iterable(found))


def _groups(
    ranks: _Stage, workers: Sequence[WorkerRecord], broken: AbstractSet[Link]
) -> list[_Ranks]:
    """Candidates for the ranks of one stage, the best first, each worker in one of them.

    And once more with those at the ends of broken links last: a host may have enough others.
    """
    groups: dict[_Ranks, None] = {}
    ends = frozenset(chain.from_iterable(broken))
    workers = sorted(workers, key=lambda worker: (*worker.fault_key, not _holds(worker, ranks)))
    for ordered in (workers, sorted(workers, key=lambda each: each.identity.worker_id in ends)):
        for host in _hosts(ordered):
            for begin in range(0, len(host) - len(ranks) + 1, len(ranks)):
                settled = _match_ranks(ranks, host[begin : begin + len(ranks)])
                groups.setdefault(tuple(settled[rank] for rank in ranks))
    return sorted(
        groups,
        key=lambda group: (max(worker.fault_key for worker in group), -_num_held(ranks, group)),
    )


def describe_shortage(assignments: Sequence[Assignment], workers: Sequence[WorkerRecord]) -> str:
    """What a plan waits for that cannot be placed, for people."""
    workers = _computing(workers)
    if len(workers) < len(assignments):
        return f"{len(workers)} of {len(assignments)}"
    tp_sizes = [len(ranks) for ranks in _by_stage(assignments)]
    counts = Counter(worker.identity.node for worker in workers)
    hosts = ", ".join(f"{count} on {node}" for node, count in counts.items())
    return (
        f"{len(workers)} are there ({hosts}), but the ranks of a stage must share a host, and the "
        f"stages have {', '.join(map(str, tp_sizes))}"
    )


def _computing(workers: Sequence[WorkerRecord]) -> Sequence[WorkerRecord]:
    """Those that compute; paced ones only where there are no others: the two would not agree."""
    return [each for each in workers if each.identity.device_kind != "paced"] or workers


def _by_stage(assignments: Sequence[Assignment]) -> Iterator[_Stage]:
    """The plan is in the order of stages."""
    for _, ranks in groupby(assignments, key=lambda assignment: assignment.stage):
        yield tuple(ranks)


def _hosts(workers: Sequence[WorkerRecord]) -> list[list[WorkerRecord]]:
    """The members by node; nodes and members in the order in which they joined."""
    hosts: dict[str, list[WorkerRecord]] = {}
    for worker in workers:
        hosts.setdefault(worker.identity.node, []).append(worker)
    return list(hosts.values())


def _num_held(ranks: _Stage, workers: Sequence[WorkerRecord]) -> int:
    return sum(_holds(worker, ranks) for worker in workers)


def _holds(worker: WorkerRecord, ranks: Sequence[Assignment]) -> bool:
    return _held_part(worker, ranks) is not None


def _held_part(worker: WorkerRecord, ranks: Sequence[Assignment]) -> Assignment | None:
    """Which of these the member holds, be it for another replica: the weights are the same."""
    held = worker.held
    if held is None:
        return None
    return next((each for each in ranks if each == replace(held, replica=each.replica)), None)


def _match_ranks(ranks: _Stage, host: Sequence[WorkerRecord]) -> dict[Assignment, WorkerRecord]:
    """Each rank to whoever of this host holds it, the rest in the order in which they joined."""
    keeping: dict[Assignment, WorkerRecord] = {}
    # Its own come first, so that replicas that end together find their workers again.
    for worker in sorted(host, key=lambda worker: worker.held not in ranks):
        part = _held_part(worker, ranks)
        if part is not None:
            keeping.setdefault(part, worker)
    others = iter([worker for worker in host if worker not in keeping.values()])
    return {rank: keeping.get(rank) or next(others) for rank in ranks}
