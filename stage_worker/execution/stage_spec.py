"""The specification of one rank's stage, and the output of a step.

Shapes: T tokens of the step, H this rank's interval of the hidden dimension.
"""

from dataclasses import dataclass

from torch import Tensor

from runtime.protocol.step import SampledToken, ScoredToken


@dataclass(frozen=True, slots=True)
class StageSpec:
    """The part of the model to run, and how; `kv_memory_bytes` 0 means `default_kv_bytes`.

    `dtype`, of weights, KV cache and hidden states, is "float32", "bfloat16" or "float16".
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
    """A step's output: hidden states, or tokens from the last stage's rank 0.

    `hidden_TH` is this rank's interval of the hidden states for the next stage.
    """

    hidden_TH: Tensor | None
    sampled: tuple[SampledToken, ...] = ()
    scored: tuple[ScoredToken, ...] = ()
