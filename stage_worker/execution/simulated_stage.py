"""A stage that takes the time a model says and computes nothing: for trying pipelines out.

Everything around it is real: process, streams, frames of the model's own size, credits, slots and
blocks. Its tokens follow from their positions and the tokens before them, so streams can be
checked. Where the times come from is not known here.

Shapes: T tokens of the step, W this rank's interval of the hidden dimension.
"""

import math
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from runtime.errors import StagemeshError
from runtime.model_config.model_config import ModelConfig
from runtime.model_config.tensor_parallel import RankShares
from runtime.protocol.step import SampledToken, ScoredToken, SequenceChunk, Step
from stage_worker.collectives.group import SINGLE_RANK, RankGroup
from stage_worker.execution.slot_table import SlotLimits, SlotTable
from stage_worker.execution.stage_runner import StageRunner
from stage_worker.execution.stage_spec import StageOutput, StageSpec
from stage_worker.model.weights import DTYPES
from stage_worker.sampling.prompt_logprobs import chunk_targets

SIMULATED_DEVICE = "paced"
"""The kind of device that a paced worker says it has."""

_SPIN_SECONDS = 0.0002
"""A sleep ends late by about so much; the rest of the time is spun."""
_HALVING = math.log(0.5)


class StepTimeModel(Protocol):
    """How long steps take, and how much memory to pretend."""

    @property
    def num_kv_blocks(self) -> int:
        """KV blocks that every stage says it can hold."""

    def stage_seconds(self, step: Step, stage: int, share: float, age_seconds: float) -> float:
        """What `stage` takes for a step; `share` is its part of the model's layers.

        `age_seconds` is how long ago its first step began.
        """


@dataclass(frozen=True, slots=True)
class SimulatedStageSpec:
    """Where a paced stage stands in the pipeline, and its share of the model's layers."""

    stage: int
    share: float


class SimulatedStage:
    """Stands in for a `StageRunner`, with the same checks of every step."""

    weights_bytes = 0
    device = torch.device("cpu")

    def __init__(
        self,
        spec: StageSpec,
        config: ModelConfig,
        part: SimulatedStageSpec,
        step_times: StepTimeModel,
    ) -> None:
        self.spec = spec
        self.config = config
        self._part = part
        self._step_times = step_times
        self._group: RankGroup = SINGLE_RANK
        self._slots = SlotTable(SlotLimits(0, 0, spec.block_size, spec.max_model_len))
        self._began_at: float | None = None
        hidden_width = len(RankShares.of(config, spec.rank, spec.tp_size).hidden)
        self._hidden_TW = torch.zeros(0, hidden_width, dtype=DTYPES[spec.dtype])

    @property
    def num_slots_used(self) -> int:
        """Open slots."""
        return self._slots.num_slots_used

    @property
    def num_blocks_used(self) -> int:
        """KV blocks that open slots hold."""
        return self._slots.num_blocks_used

    def kv_block_capacity(self) -> int:
        """As many as the model of times says."""
        return self._step_times.num_kv_blocks

    def block_table_bytes(self, max_sequences: int) -> int:
        """Memory that `open_epoch` takes for the block tables of so many sequences."""
        max_blocks = -(-self.spec.max_model_len // self.spec.block_size)
        return max_sequences * max_blocks * torch.int64.itemsize

    def open_epoch(
        self, num_blocks: int, max_sequences: int, group: RankGroup = SINGLE_RANK
    ) -> None:
        """Starts over with empty slots and tables; there is no cache."""
        spec = self.spec
        self._group = group
        self._slots = SlotTable(
            SlotLimits(max_sequences, num_blocks, spec.block_size, spec.max_model_len)
        )

    def run(self, step: Step, hidden_TW: Tensor | None) -> StageOutput:
        """Takes the step's changes over, then its time; raises what `SlotTable.apply` raises."""
        now = time.monotonic()
        if self._began_at is None:
            self._began_at = now
        self._admit(step)
        if not step.chunks:
            return StageOutput(None)
        part, age_seconds = self._part, now - self._began_at
        seconds = self._step_times.stage_seconds(step, part.stage, part.share, age_seconds)
        output = self._draw_all(step) if self.spec.is_last else self._pass_on(step.num_tokens)
        sleep_until(now + seconds)
        return output

    def _pass_on(self, num_tokens: int) -> StageOutput:
        """Hidden states of the right shape, all of them zero."""
        if len(self._hidden_TW) < num_tokens:
            self._hidden_TW = self._hidden_TW.new_zeros(num_tokens, self._hidden_TW.shape[1])
        return StageOutput(self._hidden_TW[:num_tokens])

    def _admit(self, step: Step) -> None:
        """Takes the step's changes over; all ranks admit it, or none does."""
        refusal: StagemeshError | None = None
        try:
            self._slots.apply(step)
        except StagemeshError as error:
            refusal = error
        self._group.agree(step, refusal)

    def _draw_all(self, step: Step) -> StageOutput:
        if self.spec.rank > 0:
            return StageOutput(None)
        drawn = (self._draw(chunk) for chunk in step.chunks if chunk.sample)
        scored = (token for chunk in step.chunks for token in self._score(chunk))
        return StageOutput(None, tuple(drawn), tuple(scored))

    def _score(self, chunk: SequenceChunk) -> Iterator[ScoredToken]:
        """Of the prompt's tokens, all are equally likely."""
        vocab_size = self.config.vocab_size
        for target in chunk_targets(chunk, 0, self._slots[chunk.slot].sampling):
            ids, logprobs = simulated_logprobs(
                target.token_id, target.position, vocab_size, max(1, target.num_logprobs)
            )
            top = ids[: target.num_logprobs], logprobs[: target.num_logprobs]
            logprob = -math.log(vocab_size)
            yield ScoredToken(target.slot, target.position, target.token_id, logprob, *top)

    def _draw(self, chunk: SequenceChunk) -> SampledToken:
        sampling = self._slots[chunk.slot].sampling
        if sampling.grammar:
            problem = "workers that take modelled times follow no grammar"
            return SampledToken(chunk.slot, token_id=0, problem=problem)
        position = chunk.position + len(chunk.token_ids)
        suppressed = sampling.suppressed_ids if position < sampling.suppressed_until else ()
        num_logprobs = sampling.num_logprobs
        ids, logprobs = simulated_logprobs(
            chunk.token_ids[-1],
            position,
            self.config.vocab_size,
            max(1, num_logprobs),
            suppressed,
        )
        return SampledToken(
            chunk.slot, ids[0], logprobs[0], ids[:num_logprobs], logprobs[:num_logprobs]
        )


AnyStage = StageRunner | SimulatedStage


def simulated_logprobs(
    last_token: int,
    position: int,
    vocab_size: int,
    num_logprobs: int,
    suppressed: Collection[int] = (),
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """What follows `last_token` at `position`: ids, each half as likely as the one before it.

    Fewer than asked for where so many are suppressed.
    """
    first = (last_token * 2_654_435_761 + position * 40_503 + 12_345) % 2**32 % vocab_size
    in_turn = (token_id % vocab_size for token_id in range(first, first + vocab_size))
    allowed = (token_id for token_id in in_turn if token_id not in suppressed)
    ids = tuple(islice(allowed, num_logprobs))
    return ids, tuple(_HALVING * (rank + 1) for rank in range(len(ids)))


def sleep_until(deadline: float) -> None:
    """Returns at `deadline`, in `time.monotonic` seconds, within some microseconds."""
    left = deadline - time.monotonic() - _SPIN_SECONDS
    if left > 0:
        time.sleep(left)
    while time.monotonic() < deadline:
        pass
