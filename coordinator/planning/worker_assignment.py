"""Decides which worker runs which assignment: the ranks of a stage on one host, weights kept.

Pure functions of the plan and the workers. Ranks of one stage share memory, so their workers must
run on one node; different stages may run anywhere that their neighbours reach.
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

# The assignments of one stage, and their workers, by rank.
_Stage = tuple[Assignment, ...]
_Ranks = tuple[WorkerRecord, ...]

# Bounds the search among many workers that reach few others; it then finds nothing.
_MAX_SEARCH_STEPS: Final = 10_000


def assign_workers(
    assignments: Sequence[Assignment],
    workers: Sequence[WorkerRecord],
    broken: AbstractSet[Link] = frozenset(),
) -> tuple[WorkerRecord, ...] | None:
    """The workers in the order of `assignments`; None while they do not suffice.

    A stage goes to the host that has loaded most of it, then to the host whose free worker joined
    first. Large stages select before small ones (first-fit decreasing), which always succeeds when
    it is possible if all stages have equally many ranks. As few workers with fault scores as
    possible are used, lowest scores first. If the result sends over a link in `broken`, other
    workers or another order are searched.
    """
    assigned = _assign_by_fault_score(assignments, workers)
    if assigned is None or broken.isdisjoint(links_of(assignments, assigned)):
        return assigned
    return _avoid_links(assignments, _computing(workers), broken)


def links_of(assignments: Sequence[Assignment], assigned: Sequence[WorkerRecord]) -> Iterator[Link]:
    """The links that assigned workers use: from every rank to every rank of the next stage.

    Most ranks send to one rank only, but links break between hosts.
    """
    workers = iter(assigned)
    stages = [[next(workers) for _ in ranks] for ranks in _by_stage(assignments)]
    return chain.from_iterable(starmap(_links, pairwise(stages)))


def _links(senders: Sequence[WorkerRecord], receivers: Sequence[WorkerRecord]) -> Iterator[Link]:
    pairs = product(senders, receivers)
    return ((one.identity.worker_id, other.identity.worker_id) for one, other in pairs)


def describe_shortage(assignments: Sequence[Assignment], workers: Sequence[WorkerRecord]) -> str:
    """A text that explains why `workers` do not suffice for `assignments`."""
    workers = _computing(workers)
    if len(workers) < len(assignments):
        return f"{len(workers)} of {len(assignments)}"
    tp_sizes = [len(ranks) for ranks in _by_stage(assignments)]
    counts = Counter(worker.identity.node for worker in workers)
    hosts = ", ".join(f"{count} on {node}" for node, count in counts.items())
    return (
        f"{len(workers)} have joined ({hosts}), but the ranks of a stage must share a host, and "
        f"the stages have {', '.join(map(str, tp_sizes))}"
    )


def _assign_by_fault_score(
    assignments: Sequence[Assignment], workers: Sequence[WorkerRecord]
) -> tuple[WorkerRecord, ...] | None:
    workers = _computing(workers)
    faulty = [worker for worker in workers if worker.is_deprioritized]
    faulty.sort(key=lambda worker: (*worker.fault_key, not _holds(worker, assignments)))
    usable = [worker for worker in workers if not worker.is_deprioritized]
    assigned = _assign_ignoring_faults(assignments, usable)
    while assigned is None and faulty:
        usable.append(faulty.pop(0))
        assigned = _assign_ignoring_faults(assignments, usable)
    return assigned


def _assign_ignoring_faults(
    assignments: Sequence[Assignment], workers: Sequence[WorkerRecord]
) -> tuple[WorkerRecord, ...] | None:
    if len(workers) < len(assignments):
        return None
    stages = list(_by_stage(assignments))
    stages.sort(key=lambda ranks: (-_num_held(ranks, workers), -len(ranks)))
    # Workers that hold another stage's part come last.
    free = sorted(workers, key=lambda each: (_holds(each, assignments), each.held is not None))
    assigned: dict[Assignment, WorkerRecord] = {}
    for ranks in stages:
        hosts = sorted(_hosts(free), key=lambda host: -_num_held(ranks, host))
        host = next((host for host in hosts if len(host) >= len(ranks)), None)
        if host is None:
            return None
        matched = _match_ranks(ranks, host)
        assigned |= matched
        free = [worker for worker in free if worker not in matched.values()]
    return tuple(assigned[assignment] for assignment in assignments)


def _avoid_links(
    assignments: Sequence[Assignment], workers: Sequence[WorkerRecord], broken: AbstractSet[Link]
) -> tuple[WorkerRecord, ...] | None:
    """The first assignment without a broken link, searched depth first, stage by stage."""
    stages = list(_by_stage(assignments))
    candidates = [_candidates(ranks, workers, broken) for ranks in stages]
    steps = count()

    def extend(path: tuple[_Ranks, ...]) -> tuple[_Ranks, ...] | None:
        if len(path) == len(stages):
            return path
        used = set(chain.from_iterable(path))
        for ranks in candidates[len(path)]:
            if next(steps) >= _MAX_SEARCH_STEPS:
                return None
            previous = path[-1] if path else ()
            if used.isdisjoint(ranks) and broken.isdisjoint(_links(previous, ranks)):
                longer = extend((*path, ranks))
                if longer is not None:
                    return longer
        return None

    found = extend(())
    return None if found is None else tuple(chain.from_iterable(found))


def _candidates(
    ranks: _Stage, workers: Sequence[WorkerRecord], broken: AbstractSet[Link]
) -> list[_Ranks]:
    """Groups of workers for the ranks of one stage, the best first.

    Each host is divided into groups twice: by fault score and held parts, and with the workers at
    the ends of broken links last, because a host may have enough others.
    """
    groups: dict[_Ranks, None] = {}
    ends = frozenset(chain.from_iterable(broken))
    workers = sorted(workers, key=lambda worker: (*worker.fault_key, not _holds(worker, ranks)))
    for ordered in (workers, sorted(workers, key=lambda each: each.identity.worker_id in ends)):
        for host in _hosts(ordered):
            for begin in range(0, len(host) - len(ranks) + 1, len(ranks)):
                matched = _match_ranks(ranks, host[begin : begin + len(ranks)])
                groups.setdefault(tuple(matched[rank] for rank in ranks))
    return sorted(
        groups,
        key=lambda group: (max(worker.fault_key for worker in group), -_num_held(ranks, group)),
    )


def _computing(workers: Sequence[WorkerRecord]) -> Sequence[WorkerRecord]:
    """Workers with a real device, or the simulated ones if there are no others.

    The two compute different tokens, so they never share a replica.
    """
    return [each for each in workers if each.identity.device_kind != "paced"] or workers


def _by_stage(assignments: Sequence[Assignment]) -> Iterator[_Stage]:
    """Groups assignments, which are in the order of stages."""
    for _, ranks in groupby(assignments, key=lambda assignment: assignment.stage):
        yield tuple(ranks)


def _hosts(workers: Sequence[WorkerRecord]) -> list[list[WorkerRecord]]:
    """Groups workers by node; nodes and workers keep their order."""
    hosts: dict[str, list[WorkerRecord]] = {}
    for worker in workers:
        hosts.setdefault(worker.identity.node, []).append(worker)
    return list(hosts.values())


def _num_held(ranks: _Stage, workers: Sequence[WorkerRecord]) -> int:
    return sum(_holds(worker, ranks) for worker in workers)


def _holds(worker: WorkerRecord, ranks: Sequence[Assignment]) -> bool:
    return _held_part(worker, ranks) is not None


def _held_part(worker: WorkerRecord, ranks: Sequence[Assignment]) -> Assignment | None:
    """The assignment that the worker holds, also if held for another replica: same weights."""
    held = worker.held
    if held is None:
        return None
    return next((each for each in ranks if each == replace(held, replica=each.replica)), None)


def _match_ranks(ranks: _Stage, host: Sequence[WorkerRecord]) -> dict[Assignment, WorkerRecord]:
    """Gives each rank the worker of this host that holds it; the others keep their order."""
    keeping: dict[Assignment, WorkerRecord] = {}
    # Parts of this replica first, so that replicas that end together keep their workers.
    for worker in sorted(host, key=lambda worker: worker.held not in ranks):
        part = _held_part(worker, ranks)
        if part is not None:
            keeping.setdefault(part, worker)
    others = iter([worker for worker in host if worker not in keeping.values()])
    return {rank: keeping.get(rank) or next(others) for rank in ranks}
