"""Stages in one process, of one or several ranks: their specifications and loading."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from runtime.checkpoints.checkpoint import Checkpoint
from runtime.protocol.step import Step
from stage_worker.execution.stage_runner import StageRunner
from stage_worker.execution.stage_spec import StageOutput, StageSpec
from tests.stage_worker.collectives.rank_threads import open_groups

_T = TypeVar("_T")


class RankedStage:
    """All ranks of a stage, as threads: a `StageRunner` whose hidden states are complete.

    `close` ends an epoch. `overlap` is as in `GroupSpec`.
    """

    def __init__(self, ranks: Sequence[StageRunner], overlap: str = "auto") -> None:
        self.ranks = tuple(ranks)
        self.overlap = overlap
        self.spec = ranks[0].spec
        self._groups = open_groups(0)
        self._pool = ThreadPoolExecutor(1)

    def open_epoch(self, num_blocks: int, max_sequences: int) -> None:
        self.close()
        self._pool = ThreadPoolExecutor(len(self.ranks))
        self._groups = open_groups(len(self.ranks), overlap=self.overlap)
        for rank, group in zip(self.ranks, self._groups, strict=True):
            rank.open_epoch(num_blocks, max_sequences, group)

    def run(self, step: Step, hidden_TH: Tensor | None) -> StageOutput:
        """Runs all ranks on their intervals; raises the error of the first rank with one."""
        hidden_size = self.ranks[0].config.hidden_size
        intervals: Sequence[Tensor | None] = [None] * len(self.ranks)
        if hidden_TH is not None:
            assert hidden_TH.shape[1] == hidden_size
            intervals = hidden_TH.tensor_split(len(self.ranks), dim=1)
        outputs = self._on_all(
            [
                partial(rank.run, step, part)
                for rank, part in zip(self.ranks, intervals, strict=True)
            ]
        )
        assert not any(output.sampled for output in outputs[1:])
        parts = [output.hidden_TH for output in outputs if output.hidden_TH is not None]
        whole_TH = torch.cat(parts, dim=1) if parts else None
        return StageOutput(whole_TH, outputs[0].sampled)

    @property
    def num_slots_used(self) -> int:
        return self.ranks[0].num_slots_used

    @property
    def num_blocks_used(self) -> int:
        return self.ranks[0].num_blocks_used

    def close(self) -> None:
        for group in self._groups:
            group.close()
        self._groups = open_groups(0)
        self._pool.shutdown()

    def _on_all(self, calls: Sequence[Callable[[], _T]]) -> list[_T]:
        futures = [self._pool.submit(call) for call in calls]
        return [future.result() for future in futures]


def make_spec(
    num_layers: int,
    first_layer: int = 0,
    of: int | None = None,
    max_model_len: int = 4096,
    rank: int = 0,
    tp_size: int = 1,
) -> StageSpec:
    """A float32 stage of a model with `of` layers, by default `num_layers`."""
    return StageSpec(
        first_layer=first_layer,
        num_layers=num_layers,
        is_first=first_layer == 0,
        is_last=first_layer + num_layers == (of or num_layers),
        dtype="float32",
        block_size=8,
        max_model_len=max_model_len,
        kv_memory_bytes=0,
        num_threads=1,
        rank=rank,
        tp_size=tp_size,
    )


def load_stages(
    folder: Path, layer_counts: Sequence[int], max_model_len: int = 4096
) -> list[StageRunner]:
    """One single-rank stage per count."""
    return [stage.ranks[0] for stage in load_ranked(folder, layer_counts, max_model_len)]


def load_ranked(
    folder: Path,
    layer_counts: Sequence[int],
    max_model_len: int = 4096,
    tp_sizes: Sequence[int] | None = None,
    overlap: str = "auto",
) -> list[RankedStage]:
    """One stage per count, with `tp_sizes` ranks each, by default one."""
    first_layers = accumulate(layer_counts, initial=0)
    checkpoint = Checkpoint.open(folder)
    stages = []
    tp_sizes = tp_sizes or [1] * len(layer_counts)
    for count, first, size in zip(layer_counts, first_layers, tp_sizes, strict=False):
        specs = [
            make_spec(count, first, sum(layer_counts), max_model_len, rank, size)
            for rank in range(size)
        ]
        ranks = [StageRunner.load(checkpoint, spec, lambda done, total: None) for spec in specs]
        stages.append(RankedStage(ranks, overlap))
    return stages
