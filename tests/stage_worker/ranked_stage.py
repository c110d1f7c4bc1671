"""A stage of several ranks as one: threads of this process that share memory as processes do."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from runtime.protocol.step import Step
from stage_worker.execution.stage_runner import StageRunner
from stage_worker.execution.stage_spec import StageOutput
from tests.stage_worker.collectives.rank_threads import open_groups

_T = TypeVar("_T")


class RankedStage:
    """Looks like a `StageRunner` that takes and gives whole hidden states; `close` ends an epoch.

    `overlap` is as in `GroupSpec`.
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
        """Every rank gets its interval; raises what the first rank raises that does."""
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
