"""The ranks of a group as threads of one process."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

from stage_worker.collectives.group import RankGroup
from stage_worker.collectives.group_factory import GroupSpec, open_group

_numbers = count()


def open_groups(
    size: int, timeout_seconds: float = 60.0, overlap: str = "auto", backend: str = "shm"
) -> list[RankGroup]:
    """All ranks of a new group; the caller closes them."""
    name = f"test-{id(_numbers)}-{next(_numbers)}"
    first = GroupSpec(name, 0, size, backend, timeout_seconds, overlap=overlap)
    return [open_group(replace(first, rank=rank)) for rank in range(size)]


def run_ranks(calls: Sequence[Callable[[], object]]) -> list[object]:
    """Runs one call per rank concurrently; returns each result or exception, by rank."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        return [future.exception() or future.result() for future in futures]
