"""What the model itself says to a prompt: float32, in one piece, one layer in memory at a time.

The coordinator compares a route's answer with this one before it serves. The layers are one-layer
stages run one after the other, so a split that differs from the model shows, whichever it is.
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
    """The likeliest next tokens after `token_ids` and their log-probabilities, likeliest first.

    `progress` gets layers done and in total; `max_model_len` is the longest sequence that the route
    serves, where that is more than the prompt. Raises what `StageRunner.load` and `run` raise.
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
    """A stage of one layer with room for one block, which holds the whole prompt."""
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
