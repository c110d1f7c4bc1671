"""What a stage is told to be and what a step of it leaves; computes nothing.

Shapes: T tokens of the step, H this rank's interval of the hidden dimension.
"""

from dataclasses import dataclass

from torch import Tensor

from runtime.protocol.step import SampledToken, ScoredToken


@dataclass(frozen=True, slots=True)
class StageSpec:
    """Which part of a model to run, and how; `kv_memory_bytes` 0 chooses (`kv_memory.py`).

    `dtype` is "float32", "bfloat16" or "float16", of weights, KV cache and hidden states alike.
    """

    first_layer: int
    num_layers: int
    is_first: bool
    is_last: bool
    dtype: str
    block_size: int
    max_model_len: int
    kv_memory_bytes: int
    num_threads: int
    device: str = "cpu"
    rank: int = 0
    tp_size: int = 1
    num_sharers: int = 1


@dataclass(frozen=True, slots=True)
class StageOutput:
    """What a step leaves: hidden states for the next stage, or tokens from the last one's rank 0.

    `hidden_TH` is this rank's interval of them.
    """

    hidden_TH: Tensor | None
    sampled: tuple[SampledToken, ...] = ()
    scored: tuple[ScoredToken, ...] = ()
