"""Stages run one after the other in one process: what a replica computes, without the mesh.

Stands in for scheduler and streams: gives out slots and blocks, cuts prompts into chunks and checks
at the end that nothing is left behind.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from runtime.checkpoints.checkpoint import Checkpoint
from runtime.protocol.step import (
    SampledToken,
    ScoredToken,
    SequenceChunk,
    SlotOpening,
    SlotSampling,
    Step,
)
from stage_worker.execution.stage_runner import StageRunner
from stage_worker.execution.stage_spec import StageOutput, StageSpec
from tests.stage_worker.ranked_stage import RankedStage


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt that starts at step `start` and gets `num_tokens` new tokens."""

    prompt_ids: tuple[int, ...]
    num_tokens: int = 1
    sampling: SlotSampling = SlotSampling()
    start: int = 0


@dataclass(slots=True)
class Running:
    """A request in its slot: `token_ids` are its prompt and what was sampled."""

    request: Request
    slot: int
    token_ids: list[int]
    num_cached: int = 0
    block_ids: list[int] = field(default_factory=list)
    sampled: list[SampledToken] = field(default_factory=list)
    scored: list[ScoredToken] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        return len(self.sampled) == self.request.num_tokens


def make_spec(
    num_layers: int,
    first_layer: int = 0,
    of: int | None = None,
    max_model_len: int = 4096,
    rank: int = 0,
    tp_size: int = 1,
) -> StageSpec:
    """A float32 stage of a model with `of` layers (as many as the stage, if not given)."""
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
    """One stage per count."""
    return [stage.ranks[0] for stage in load_ranked(folder, layer_counts, max_model_len)]


def load_ranked(
    folder: Path,
    layer_counts: Sequence[int],
    max_model_len: int = 4096,
    tp_sizes: Sequence[int] | None = None,
    overlap: str = "auto",
) -> list[RankedStage]:
    """One stage per count, of as many ranks as `tp_sizes` says, or of one."""
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


class LocalPipeline:
    """A replica of these stages in an epoch of its own; blocks come in a shuffled order."""

    def __init__(
        self,
        stages: Sequence[StageRunner | RankedStage],
        num_blocks: int = 600,
        max_sequences: int = 8,
    ):
        self._stages = stages
        self._block_size = stages[0].spec.block_size
        for stage in stages:
            stage.open_epoch(num_blocks, max_sequences)
        self._free_blocks = list(range(num_blocks))
        random.Random(num_blocks).shuffle(self._free_blocks)
        self._free_slots = list(range(max_sequences))
        self._num_steps = 0
        self._released: list[int] = []

    def generate(
        self, requests: Sequence[Request], chunk_sizes: Iterable[int]
    ) -> list[list[SampledToken]]:
        """Every step takes the next chunk size and gives each running prompt a chunk of it."""
        return [done.sampled for done in self.run(requests, chunk_sizes)]

    def run(self, requests: Sequence[Request], chunk_sizes: Iterable[int]) -> list[Running]:
        """The same, with all that came out."""
        waiting = list(requests)
        running: list[Running] = []
        finished: dict[int, Running] = {}
        sizes = iter(chunk_sizes)
        step = 0
        while waiting or running:
            started = [request for request in waiting if request.start <= step]
            waiting = [request for request in waiting if request.start > step]
            opened = [self._start(request) for request in started]
            running += opened
            if running:
                self._step(running, opened, next(sizes))
            for done in [sequence for sequence in running if sequence.is_finished]:
                running.remove(done)
                self.release(done)
                finished[id(done.request)] = done
            step += 1
        return [finished[id(request)] for request in requests]

    def release(self, sequence: Running) -> None:
        """Takes the sequence out with the next step."""
        self._released.append(sequence.slot)
        self._free_slots.append(sequence.slot)
        self._free_blocks += sequence.block_ids

    def close(self) -> None:
        """Releases what is left to release and checks that nothing is held any more."""
        self._run(Step(self._num_steps, released_slots=tuple(self._released)))
        for stage in self._stages:
            assert stage.num_slots_used == 0
            assert stage.num_blocks_used == 0
            if isinstance(stage, RankedStage):
                stage.close()

    def _start(self, request: Request) -> Running:
        return Running(request, self._free_slots.pop(0), list(request.prompt_ids))

    def _step(self, running: list[Running], opened: list[Running], chunk_size: int) -> None:
        chunks = tuple(self._chunk(sequence, chunk_size) for sequence in running)
        openings = tuple(SlotOpening(new.slot, new.request.sampling) for new in opened)
        output = self._run(Step(self._num_steps, tuple(self._released), openings, chunks))
        self._num_steps += 1
        self._released = []
        by_slot = {sequence.slot: sequence for sequence in running}
        for scored in output.scored:
            by_slot[scored.slot].scored.append(scored)
        for token in output.sampled:
            by_slot[token.slot].sampled.append(token)
            by_slot[token.slot].token_ids.append(token.token_id)

    def _chunk(self, sequence: Running, chunk_size: int) -> SequenceChunk:
        begin = sequence.num_cached
        end = min(begin + chunk_size, len(sequence.token_ids))
        num_new = -(-end // self._block_size) - len(sequence.block_ids)
        new_block_ids = tuple(self._free_blocks.pop(0) for _ in range(num_new))
        sequence.block_ids += new_block_ids
        sequence.num_cached = end
        token_ids = tuple(sequence.token_ids[begin:end])
        is_whole = end == len(sequence.token_ids)
        following = None if is_whole else sequence.token_ids[end]
        return SequenceChunk(
            sequence.slot, begin, token_ids, new_block_ids, is_whole, next_token_id=following
        )

    def _run(self, step: Step) -> StageOutput:
        hidden_TH = None
        for stage in self._stages:
            output = stage.run(step, hidden_TH)
            hidden_TH = output.hidden_TH
        return output
