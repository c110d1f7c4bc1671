"""Brings a replica up: checks devices, loads weights, derives the limits and opens the epoch.

Each function is one step of `replica.py`, which decides when to run it and what a failure means.
"""

import asyncio
from collections.abc import Sequence

from coordinator.membership.assignment import Assignment, LoadReport
from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.replica_layout import served_len
from coordinator.stage_client.stage_client import StageClient
from coordinator.stage_client.stage_codec import EpochId, EpochPlan, RankPosition
from coordinator.telemetry.replica_telemetry import ReplicaTelemetry
from runtime.errors import WorkerRefusedError
from runtime.host.logs import get_logger
from runtime.protocol.backends import BACKEND_DEVICES
from scheduler import SchedulerLimits, guess_costs

_log = get_logger()

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# Clients by stage and rank.
Stages = tuple[tuple[StageClient, ...], ...]


def check_devices(
    backend: str, assignments: Sequence[Assignment], workers: Sequence[WorkerRecord]
) -> None:
    """Raises `WorkerRefusedError` if the ranks of a stage cannot exchange data over `backend`.

    Each worker would find that out itself, but only after its weights are loaded.
    """
    rank_0_kinds = {
        part.stage: worker.identity.device_kind
        for part, worker in zip(assignments, workers, strict=True)
        if part.rank == 0
    }
    for part, worker in zip(assignments, workers, strict=True):
        kind = worker.identity.device_kind
        needed = BACKEND_DEVICES.get(backend, rank_0_kinds[part.stage])
        # Simulated workers exchange nothing.
        if part.tp_size == 1 or kind == needed or kind not in BACKEND_DEVICES.values():
            continue
        ranks = f"the ranks of stage {part.stage}"
        if backend in BACKEND_DEVICES:
            problem = f"--backend {backend} needs {needed} devices for {ranks}"
            remedy = f"leave --backend at auto, or give the stage workers on {needed}"
        else:
            problem = f"{ranks} need devices of one kind, rank 0 has {needed}"
            remedy = "give the stage workers of one kind"
        reason = f"{problem}, and this worker's is {kind}; {remedy}"
        raise WorkerRefusedError(worker=worker.name, reason=reason)


async def load_parts(
    clients: Sequence[StageClient], assignments: Sequence[Assignment], telemetry: ReplicaTelemetry
) -> list[LoadReport]:
    """Makes all workers load their parts at the same time, except those that hold them already."""
    telemetry.start_loading()
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(_load_part(client, assignment, telemetry))
            for client, assignment in zip(clients, assignments, strict=True)
        ]
    return [task.result() for task in running]


async def _load_part(
    client: StageClient, assignment: Assignment, telemetry: ReplicaTelemetry
) -> LoadReport:
    progress = telemetry.loading[assignment.stage][assignment.rank]
    # Asked, not remembered: only the worker knows what it holds.
    report = await client.held_report(assignment)
    event = "part_kept" if report else "part_loaded"
    if report is None:
        report = await client.load(assignment, progress.update)
    _log.info(
        event,
        worker=client.worker.name,
        replica=assignment.replica,
        stage=assignment.stage,
        rank=assignment.rank,
        seconds=round(report.load_seconds, 3),
    )
    progress.finish(report)
    return report


def make_limits(
    options: CoordinatorOptions,
    assignments: Sequence[Assignment],
    reports: Sequence[LoadReport],
    device_kinds: Sequence[str],
) -> SchedulerLimits:
    """The limits of the replica: the KV blocks of its smallest rank, and estimated stage costs.

    `reports` and `device_kinds` are in the order of `assignments`.

    Raises `NeverFitsError` if the blocks do not hold one sequence of the requested length.
    """
    num_blocks = min(report.num_kv_blocks for report in reports)
    is_requested = options.max_model_len is not None
    return SchedulerLimits(
        num_blocks=num_blocks,
        block_size=options.block_size,
        max_sequences=options.max_sequences,
        max_step_tokens=options.max_step_tokens,
        max_model_len=served_len(
            assignments[0].max_model_len, is_requested, num_blocks, options.block_size
        ),
        num_steps_in_flight=options.steps_in_flight,
        max_waiting=options.max_waiting,
        prefix_caching=options.prefix_cache,
        guessed_costs=tuple(
            guess_costs(
                kind, report.weights_bytes, _DTYPE_BYTES[assignment.dtype], assignment.num_layers
            )
            for assignment, report, kind in zip(assignments, reports, device_kinds, strict=True)
            if assignment.rank == 0  # the ranks of a stage do equal work at the same time
        ),
    )


def group_by_stage(clients: Sequence[StageClient], assignments: Sequence[Assignment]) -> Stages:
    """The clients grouped by the stage that their workers run."""
    stages: dict[int, list[StageClient]] = {}
    for client, assignment in zip(clients, assignments, strict=True):
        stages.setdefault(assignment.stage, []).append(client)
    return tuple(tuple(ranks) for ranks in stages.values())


async def open_epoch(
    stages: Stages,
    epoch: EpochId,
    replica: int,
    options: CoordinatorOptions,
    limits: SchedulerLimits,
) -> EpochPlan:
    """Opens the epoch on all ranks, the last stage first, so that each finds the next one open.

    The ranks of one stage connect to each other while they open, so they are opened concurrently.
    """
    plan = EpochPlan(
        epoch=epoch,
        replica=replica,
        num_kv_blocks=limits.num_blocks,
        max_sequences=limits.max_sequences,
        max_step_tokens=limits.max_step_tokens,
        window=options.window,
        backend=options.backend,
        collective_timeout_seconds=options.collective_timeout_seconds,
        overlap=options.overlap,
    )
    for stage in reversed(range(len(stages))):
        following = stages[stage + 1] if stage + 1 < len(stages) else ()
        addresses = tuple(client.worker.identity.address for client in following)
        num_senders = len(stages[stage - 1]) if stage else 1
        async with asyncio.TaskGroup() as tasks:
            for rank, client in enumerate(stages[stage]):
                position = RankPosition(stage, rank, addresses, num_senders)
                tasks.create_task(client.open_epoch(plan, position))
    return plan
