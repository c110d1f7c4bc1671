"""Stages of several ranks on live workers in this process; the test is their coordinator."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from protos import stage_pb2
from tests.stage_worker.live_worker import LiveWorker, make_assignments

# The workers of each stage, by rank.
Stages = Sequence[Sequence[LiveWorker]]


@dataclass(frozen=True, slots=True)
class RanksPlan:
    """How many layers and how many ranks each stage has."""

    layer_counts: tuple[int, ...]
    tp_sizes: tuple[int, ...]

    @property
    def num_workers(self) -> int:
        return sum(self.tp_sizes)

    def arrange(self, workers: Sequence[LiveWorker]) -> Stages:
        """The workers by stage and rank."""
        firsts = (0, *accumulate(self.tp_sizes))
        return [
            workers[first : first + size]
            for first, size in zip(firsts, self.tp_sizes, strict=False)
        ]


async def load_ranks(stages: Stages, folder: Path, layer_counts: Sequence[int]) -> None:
    """Has every rank load its share."""
    for assignment, ranks in zip(make_assignments(folder, layer_counts), stages, strict=True):
        for rank, worker in enumerate(ranks):
            assignment.rank, assignment.tp_size = rank, len(ranks)
            await worker.load(assignment)


async def open_ranks(
    stages: Stages,
    counter: int = 1,
    collective_timeout_seconds: float = 20.0,
    overlap: stage_pb2.Overlap = stage_pb2.OVERLAP_AUTO,
) -> stage_pb2.EpochId:
    """Opens one epoch on all ranks, the last stage first, as the coordinator does."""
    for stage in reversed(range(len(stages))):
        following = stages[stage + 1] if stage + 1 < len(stages) else ()
        request = make_ranks_opening(
            counter,
            stage=stage,
            num_senders=len(stages[stage - 1]) if stage else 1,
            next_addresses=[each.address for each in following],
        )
        request.collective_timeout_seconds = collective_timeout_seconds
        request.overlap = overlap
        if overlap == stage_pb2.OVERLAP_OFF:
            request.window = 1
        await open_stage(stages[stage], request)
    return request.epoch


def make_ranks_opening(
    counter: int, *, stage: int, num_senders: int, next_addresses: Sequence[str] = ()
) -> stage_pb2.OpenEpochRequest:
    """What all ranks of a stage are told, but for their rank."""
    return stage_pb2.OpenEpochRequest(
        epoch=stage_pb2.EpochId(coordinator_id="coordinator", counter=counter),
        stage=stage,
        num_kv_blocks=8,
        max_sequences=4,
        max_step_tokens=32,
        window=2,
        next=[
            stage_pb2.Peer(address=address, rank=rank)
            for rank, address in enumerate(next_addresses)
        ],
        num_senders=num_senders,
        backend=stage_pb2.COLLECTIVE_BACKEND_AUTO,
        collective_timeout_seconds=20.0,
    )


async def open_stage(ranks: Sequence[LiveWorker], request: stage_pb2.OpenEpochRequest) -> None:
    """Opens an epoch on all ranks of one stage at the same time."""
    async with asyncio.TaskGroup() as tasks:
        for rank, worker in enumerate(ranks):
            opening = stage_pb2.OpenEpochRequest()
            opening.CopyFrom(request)
            opening.rank = rank
            tasks.create_task(worker.open_epoch(opening))
