"""A stage that sleeps for a modelled time instead of computing, for experiments with pipelines.

Processes, streams, frame sizes, credits, slots and blocks are those of a real stage. Its tokens
are a function of their positions and the tokens before them, so outputs can be checked. The times
come from a `StepTimeModel`.

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
"""The device kind that a simulated worker reports."""

_SPIN_SECONDS = 0.0002
"""The typical delay of a sleep's end; the last part of a wait is spun."""
_HALVING = math.log(0.5)


class StepTimeModel(Protocol):
    """Models the time of steps and the memory of stages."""

    @property
    def num_kv_blocks(self) -> int:
        """The KV block capacity that every stage reports."""

    def stage_seconds(self, step: Step, stage: int, share: float, age_seconds: float) -> float:
        """Seconds that `stage` takes for a step; `share` is its part of the model's layers.

        `age_seconds` is the time since the stage's first step began.
        """


@dataclass(frozen=True, slots=True)
class SimulatedStageSpec:
    """A simulated stage's number in the pipeline and its share of the model's layers."""

    stage: int
    share: float


class SimulatedStage:
    """Replaces a `StageRunner`, with the same checks of every step."""

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
        """Number of open slots."""
        return self._slots.num_slots_used

    @property
    def num_blocks_used(self) -> int:
        """Number of KV blocks that open slots hold."""
        return self._slots.num_blocks_used

    def kv_block_capacity(self) -> int:
        """The capacity of the `StepTimeModel`."""
        return self._step_times.num_kv_blocks

    def block_table_bytes(self, max_sequences: int) -> int:
        """Bytes that `open_epoch` allocates for the block tables of `max_sequences`."""
        max_blocks = -(-self.spec.max_model_len // self.spec.block_size)
        return max_sequences * max_blocks * torch.int64.itemsize

    def open_epoch(
        self, num_blocks: int, max_sequences: int, group: RankGroup = SINGLE_RANK
    ) -> None:
        """Resets the slots and block tables; there is no cache."""
        spec = self.spec
        self._group = group
        self._slots = SlotTable(
            SlotLimits(max_sequences, num_blocks, spec.block_size, spec.max_model_len)
        )

    def run(self, step: Step, hidden_TW: Tensor | None) -> StageOutput:
        """Applies the step and waits for its time; raises what `SlotTable.apply` raises."""
        now = time.monotonic()
        if self._began_at is None:
            self._began_at = now
        self._accept(step)
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

    def _accept(self, step: Step) -> None:
        """Applies the step's slot changes; all ranks accept the step or all refuse it."""
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
        """Scores a prompt as if all tokens were equally likely."""
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
            problem = "simulated workers do not support grammars"
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
    """The next tokens after `last_token` at `position`, each half as likely as the one before.

    Returns ids and log-probabilities, fewer than `num_logprobs` if too many are suppressed.
    """
    first = (last_token * 2_654_435_761 + position * 40_503 + 12_345) % 2**32 % vocab_size
    in_turn = (token_id % vocab_size for token_id in range(first, first + vocab_size))
    allowed = (token_id for token_id in in_turn if token_id not in suppressed)
    ids = tuple(islice(allowed, num_logprobs))
    return ids, tuple(_HALVING * (rank + 1) for rank in range(len(ids)))


def sleep_until(deadline: float) -> None:
    """Returns at `deadline`, in `time.monotonic` seconds, within microseconds."""
    left = deadline - time.monotonic() - _SPIN_SECONDS
    if left > 0:
        time.sleep(left)
    while time.monotonic() < deadline:
        pass
