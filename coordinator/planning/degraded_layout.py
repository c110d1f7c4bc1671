"""Derives the plans with fewer stages that a replica uses while workers are missing.

Pure functions of the options, the model and the memory that workers report.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from coordinator.membership.assignment import Assignment
from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.replica_layout import plan_replica
from runtime.errors import StagemeshError
from runtime.model_config.model_config import ModelConfig

# The rest of a device is for the KV cache, activations and other processes.
_WEIGHTS_SHARE = 0.8


def degraded_options(options: CoordinatorOptions) -> Iterator[CoordinatorOptions]:
    """The options themselves, then with one stage less each time and layers divided evenly.

    Stages with different numbers of ranks have no smaller plan: no rule decides which one to drop.
    """
    yield options
    if len(set(options.tp_sizes)) == 1:
        for num_stages in range(options.pp - 1, 0, -1):
            yield replace(options, pp=num_stages, tp=options.tp_sizes[:1], layers=None)


def try_plan(
    options: CoordinatorOptions, config: ModelConfig, fingerprint: str, replica: int
) -> tuple[Assignment, ...] | None:
    """The plan for `options`; None if the model does not allow them."""
    try:
        return plan_replica(options, config, fingerprint, replica)
    except StagemeshError:
        return None


def fits_memory(
    assignments: Sequence[Assignment], workers: Sequence[WorkerRecord], weights_bytes: int
) -> bool:
    """Whether the devices hold their parts of `weights_bytes` and the requested KV cache.

    CPU workers of one node share its memory. A device that reports no memory counts as large
    enough, until loading fails.
    """
    num_layers = sum(part.num_layers for part in assignments if part.rank == 0)
    needed: Counter[str] = Counter()
    available: dict[str, int] = {}
    for part, worker in zip(assignments, workers, strict=True):
        identity = worker.identity
        device = identity.node if identity.device_kind == "cpu" else identity.worker_id
        part_bytes = weights_bytes * part.num_layers // (num_layers * part.tp_size)
        needed[device] += int(part_bytes / _WEIGHTS_SHARE) + part.kv_memory_bytes
        available[device] = identity.memory_bytes
    return all(not available[each] or needed[each] <= available[each] for each in needed)
