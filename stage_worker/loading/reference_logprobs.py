"""The unsplit model's log-probabilities for a prompt: float32, one layer in memory at a time.

The coordinator compares a replica's result with these before it serves. The layers run one after
the other as one-layer stages, so an error in any split of the model shows in the comparison.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from runtime.checkpoints.checkpoint import Checkpoint
from runtime.model_config.model_config import load_model_config
from runtime.protocol.step import SampledToken, SequenceChunk, SlotOpening, SlotSampling, Step
from stage_worker.execution.stage_runner import StageRunner
from stage_worker.execution.stage_spec import StageSpec


def reference_logprobs(
    checkpoint: Checkpoint,
    token_ids: Sequence[int],
    num_logprobs: int,
    progress: Callable[[int, int], None],
    max_model_len: int = 0,
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The most likely next tokens after `token_ids` and their log-probabilities, in order.

    `progress` gets done and total layers. `max_model_len` is the longest sequence that the replica
    serves, if that is longer than the prompt. Raises what `StageRunner.load` and `run` raise.
    """
    num_layers = load_model_config(checkpoint.folder).num_layers
    sampling = SlotSampling(num_logprobs=num_logprobs)
    chunk = SequenceChunk(0, 0, tuple(token_ids), new_block_ids=(0,), sample=True)
    step = Step(0, opened_slots=(SlotOpening(0, sampling),), chunks=(chunk,))
    hidden_TH: Tensor | None = None
    sampled: tuple[SampledToken, ...] = ()
    for layer in range(num_layers):
        stage = _load_layer(checkpoint, layer, num_layers, len(token_ids), max_model_len)
        output = stage.run(step, hidden_TH)
        hidden_TH, sampled = output.hidden_TH, output.sampled
        progress(layer + 1, num_layers)
    return sampled[0].top_ids, sampled[0].top_logprobs


def _load_layer(
    checkpoint: Checkpoint, layer: int, num_layers: int, num_tokens: int, max_model_len: int
) -> StageRunner:
    """A stage of one layer, whose cache is one block that holds the whole prompt."""
    spec = StageSpec(
        first_layer=layer,
        num_layers=1,
        is_first=layer == 0,
        is_last=layer == num_layers - 1,
        dtype="float32",
        block_size=num_tokens,
        max_model_len=max(num_tokens, max_model_len),
        kv_memory_bytes=0,
        num_threads=torch.get_num_threads(),
    )
    stage = StageRunner.load(checkpoint, spec, lambda done, total: None)
    stage.open_epoch(num_blocks=1, max_sequences=1)
    return stage
