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
_MAX_DETOUR_STEPS: Final = 10_000


def place(
    assignments: Sequence[Assignment],
    members: Sequence[WorkerRecord],
    broken: AbstractSet[Link] = frozenset(),
) -> tuple[WorkerRecord, ...] | None:
    """Who carries out which assignment; None while the members do not suffice.

    A stage goes first where most of it is loaded already, then to the host whose free worker joined
    first. Large stages choose before small ones (first-fit decreasing), which finds a place
    whenever there is one if all stages have as many ranks. Of those that have a part in tries that
    came to nothing, no more are taken than must be, those with the least blame first. Where that
    would send over a link in `broken`, others are taken, or the same in another order.
    """
    placed = _place_least_blamed(assignments, members)
    if placed is None or broken.isdisjoint(links_of(assignments, placed)):
        return placed
    return _detour(assignments, _computing(members), broken)


def links_of(assignments: Sequence[Assignment], placed: Sequence[WorkerRecord]) -> Iterator[Link]:
    """Which worker sends to which in such a placement: every rank to every one of the next stage.

    Most ranks send to one of them only, but hosts that do not reach each other are what breaks.
    """
    members = iter(placed)
    stages = [[next(members) for _ in ranks] for ranks in _by_stage(assignments)]
    return chain.from_iterable(starmap(_links, pairwise(stages)))


def _links(senders: Sequence[WorkerRecord], receivers: Sequence[WorkerRecord]) -> Iterator[Link]:
    pairs = product(senders, receivers)
    return ((one.identity.worker_id, other.identity.worker_id) for one, other in pairs)


def _place_least_blamed(
    assignments: Sequence[Assignment], members: Sequence[WorkerRecord]
) -> tuple[WorkerRecord, ...] | None:
    members = _computing(members)
    blamed = [member for member in members if member.gives_way]
    blamed.sort(key=lambda member: (*member.demerits, not _holds(member, assignments)))
    usable = [member for member in members if not member.gives_way]
    placed = _place(assignments, usable)
    while placed is None and blamed:
        usable.append(blamed.pop(0))
        placed = _place(assignments, usable)
    return placed


def _place(
    assignments: Sequence[Assignment], members: Sequence[WorkerRecord]
) -> tuple[WorkerRecord, ...] | None:
    """Likewise, whatever they are blamed for."""
    if len(members) < len(assignments):
        return None
    stages = list(_by_stage(assignments))
    stages.sort(key=lambda ranks: (-_num_held(ranks, members), -len(ranks)))
    # Who holds another stage's part is taken only where nobody else is free.
    free = sorted(members, key=lambda each: (_holds(each, assignments), each.held is not None))
    placed: dict[Assignment, WorkerRecord] = {}
    for ranks in stages:
        hosts = sorted(_hosts(free), key=lambda host: -_num_held(ranks, host))
        host = next((host for host in hosts if len(host) >= len(ranks)), None)
        if host is None:
            return None
        chosen = _settle(ranks, host)
        placed |= chosen
        free = [member for member in free if member not in chosen.values()]
    return tuple(placed[assignment] for assignment in assignments)


def _detour(
    assignments: Sequence[Assignment], members: Sequence[WorkerRecord], broken: AbstractSet[Link]
) -> tuple[WorkerRecord, ...] | None:
    """Likewise, over no broken link: the first that is found, depth first, stage by stage."""
    stages = list(_by_stage(assignments))
    choices = [_groups(ranks, members, broken) for ranks in stages]
    steps = count()

    def extend(path: tuple[_Ranks, ...]) -> tuple[_Ranks, ...] | None:
        if len(path) == len(stages):
            return path
        taken = set(chain.from_iterable(path))
        for group in choices[len(path)]:
            if next(steps) >= _MAX_DETOUR_STEPS:
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
    ranks: _Stage, members: Sequence[WorkerRecord], broken: AbstractSet[Link]
) -> list[_Ranks]:
    """Who may be the ranks of one stage, the best first: as `place` chooses, each worker once.

    And once more with those at the ends of broken links last: a host may have enough others.
    """
    groups: dict[_Ranks, None] = {}
    ends = frozenset(chain.from_iterable(broken))
    members = sorted(members, key=lambda member: (*member.demerits, not _holds(member, ranks)))
    for ordered in (members, sorted(members, key=lambda each: each.identity.worker_id in ends)):
        for host in _hosts(ordered):
            for begin in range(0, len(host) - len(ranks) + 1, len(ranks)):
                settled = _settle(ranks, host[begin : begin + len(ranks)])
                groups.setdefault(tuple(settled[rank] for rank in ranks))
    return sorted(
        groups,
        key=lambda group: (max(member.demerits for member in group), -_num_held(ranks, group)),
    )


def what_is_missing(assignments: Sequence[Assignment], members: Sequence[WorkerRecord]) -> str:
    """What a plan waits for that cannot be placed, for people."""
    members = _computing(members)
    if len(members) < len(assignments):
        return f"{len(members)} of {len(assignments)}"
    tp_sizes = [len(ranks) for ranks in _by_stage(assignments)]
    counts = Counter(member.identity.node for member in members)
    hosts = ", ".join(f"{count} on {node}" for node, count in counts.items())
    return (
        f"{len(members)} are there ({hosts}), but the ranks of a stage must share a host, and the "
        f"stages have {', '.join(map(str, tp_sizes))}"
    )


def _computing(members: Sequence[WorkerRecord]) -> Sequence[WorkerRecord]:
    """Those that compute; paced ones only where there are no others: the two would not agree."""
    return [each for each in members if each.identity.device_kind != "paced"] or members


def _by_stage(assignments: Sequence[Assignment]) -> Iterator[_Stage]:
    """The plan is in the order of stages."""
    for _, ranks in groupby(assignments, key=lambda assignment: assignment.stage):
        yield tuple(ranks)


def _hosts(members: Sequence[WorkerRecord]) -> list[list[WorkerRecord]]:
    """The members by node; nodes and members in the order in which they joined."""
    hosts: dict[str, list[WorkerRecord]] = {}
    for member in members:
        hosts.setdefault(member.identity.node, []).append(member)
    return list(hosts.values())


def _num_held(ranks: _Stage, members: Sequence[WorkerRecord]) -> int:
    return sum(_holds(member, ranks) for member in members)


def _holds(member: WorkerRecord, ranks: Sequence[Assignment]) -> bool:
    return _held_part(member, ranks) is not None


def _held_part(member: WorkerRecord, ranks: Sequence[Assignment]) -> Assignment | None:
    """Which of these the member holds, be it for another replica: the weights are the same."""
    held = member.held
    if held is None:
        return None
    return next((each for each in ranks if each == replace(held, replica=each.replica)), None)


def _settle(ranks: _Stage, host: Sequence[WorkerRecord]) -> dict[Assignment, WorkerRecord]:
    """Each rank to whoever of this host holds it, the rest in the order in which they joined."""
    keeping: dict[Assignment, WorkerRecord] = {}
    # Its own come first, so that replicas that end together find their workers again.
    for member in sorted(host, key=lambda member: member.held not in ranks):
        part = _held_part(member, ranks)
        if part is not None:
            keeping.setdefault(part, member)
    others = iter([member for member in host if member not in keeping.values()])
    return {rank: keeping.get(rank) or next(others) for rank in ranks}
