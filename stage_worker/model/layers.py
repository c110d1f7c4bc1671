"""The parts of a Llama layer: norm, attention, feed-forward network.

Each part loads its own tensors by name. Queries, keys and values are one product, gate and up
projections another. Source: Touvron et al., "LLaMA" (2023), as in Transformers' `modeling_llama`.

Shapes: T tokens, H hidden size, N query heads, K key/value heads, D head dimension, F feed-forward
size.
"""

import torch.nn.functional as F
from torch import Tensor

from runtime.model_config import ModelConfig
from stage_worker.kv_cache import LayerCache
from stage_worker.model.linear import Linear
from stage_worker.model.paged_attention import AttentionPlan, attend
from stage_worker.model.rope import Rotation, rotate_
from stage_worker.weights import WeightReader


class RMSNorm:
    """Divides by the root of the mean square, then scales (Zhang and Sennrich, 2019)."""

    def __init__(self, weight_H: Tensor, eps: float) -> None:
        self._weight_H = weight_H
        self._eps = eps

    @classmethod
    def load(cls, reader: WeightReader, name: str, config: ModelConfig) -> "RMSNorm":
        """Reads `name`.weight."""
        return cls(reader.read(f"{name}.weight", config.hidden_size), config.rms_norm_eps)

    def __call__(self, x_TH: Tensor) -> Tensor:
        """The normed rows, [T, H]."""
        return F.rms_norm(x_TH, self._weight_H.shape, self._weight_H, self._eps)


class Attention:
    """Self-attention with rotary positions over the paged cache."""

    def __init__(self, qkv: Linear, output: Linear, config: ModelConfig) -> None:
        self._qkv = qkv
        self._output = output
        self._num_heads = config.num_heads
        self._num_kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim

    @classmethod
    def load(cls, reader: WeightReader, name: str, config: ModelConfig) -> "Attention":
        """Reads the four projections under `name`."""
        num_queries = config.num_heads * config.head_dim
        num_keys = config.num_kv_heads * config.head_dim
        parts = {
            f"{name}.q_proj": num_queries,
            f"{name}.k_proj": num_keys,
            f"{name}.v_proj": num_keys,
        }
        has_bias = config.attention_bias
        qkv = Linear.load(reader, parts, config.hidden_size, has_bias=has_bias)
        output_parts = {f"{name}.o_proj": config.hidden_size}
        output = Linear.load(reader, output_parts, num_queries, has_bias=has_bias)
        return cls(qkv, output, config)

    def __call__(
        self, x_TH: Tensor, rotation: Rotation, plan: AttentionPlan, cache: LayerCache
    ) -> Tensor:
        """Writes the tokens' keys and values, then attends; [T, H]."""
        qkv_THeadsD = self._qkv(x_TH).view(len(x_TH), -1, self._head_dim)
        num_rotated = self._num_heads + self._num_kv_heads
        rotate_(qkv_THeadsD[:, :num_rotated], rotation)
        queries_TND = qkv_THeadsD[:, : self._num_heads]
        cache.write(plan.cache_rows_T, qkv_THeadsD[:, self._num_heads :])
        return self._output(attend(queries_TND, cache, plan).flatten(1))


class FeedForward:
    """The gated network: down(silu(gate) * up)."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up = gate_up
        self._down = down

    @classmethod
    def load(cls, reader: WeightReader, name: str, config: ModelConfig) -> "FeedForward":
        """Reads the three projections under `name`."""
        size = config.intermediate_size
        parts = {f"{name}.gate_proj": size, f"{name}.up_proj": size}
        has_bias = config.mlp_bias
        gate_up = Linear.load(reader, parts, config.hidden_size, has_bias=has_bias)
        down_parts = {f"{name}.down_proj": config.hidden_size}
        return cls(gate_up, Linear.load(reader, down_parts, size, has_bias=has_bias))

    def __call__(self, x_TH: Tensor) -> Tensor:
        """The network's output, [T, H]."""
        gate_TF, up_TF = self._gate_up(x_TH).chunk(2, dim=-1)
        return self._down(F.silu(gate_TF).mul_(up_TF))


class DecoderLayer:
    """Attention, then feed-forward, each normed before and added to what it got."""

    def __init__(
        self, input_norm: RMSNorm, attention: Attention, ffn_norm: RMSNorm, ffn: FeedForward
    ) -> None:
        self._input_norm = input_norm
        self._attention = attention
        self._ffn_norm = ffn_norm
        self._ffn = ffn

    @classmethod
    def load(cls, reader: WeightReader, index: int, config: ModelConfig) -> "DecoderLayer":
        """Reads layer `index` of the whole model."""
        name = f"model.layers.{index}"
        return cls(
            RMSNorm.load(reader, f"{name}.input_layernorm", config),
            Attention.load(reader, f"{name}.self_attn", config),
            RMSNorm.load(reader, f"{name}.post_attention_layernorm", config),
            FeedForward.load(reader, f"{name}.mlp", config),
        )

    def __call__(
        self, hidden_TH: Tensor, rotation: Rotation, plan: AttentionPlan, cache: LayerCache
    ) -> Tensor:
        """The layer's output, [T, H]; its input is left as it was."""
        hidden_TH = hidden_TH + self._attention(self._input_norm(hidden_TH), rotation, plan, cache)
        return hidden_TH + self._ffn(self._ffn_norm(hidden_TH))
