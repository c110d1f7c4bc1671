"""Self-attention of one layer: projections, norms of queries and keys, rotation, cache.

Queries, keys and values are one product, whether the checkpoint has them so or not.

Shapes: T tokens, H hidden size, N query heads, K key/value heads, D head dimension, R = N + 2K.
"""

from torch import Tensor

from runtime.layer_config import LayerConfig
from runtime.model_config import ModelConfig
from stage_worker.kv_cache import LayerCache
from stage_worker.model.linear import Linear
from stage_worker.model.norm import QueryKeyNorms
from stage_worker.model.paged_attention import AttentionPlan, Scoring, attend
from stage_worker.model.rope import Rotation, rotate_
from stage_worker.weights import WeightReader


class Attention:
    """Self-attention over the paged cache."""

    def __init__(
        self,
        qkv: Linear,
        norms: QueryKeyNorms | None,
        output: Linear,
        config: ModelConfig,
        layer: LayerConfig,
    ) -> None:
        self._qkv = qkv
        self._norms = norms
        self._output = output
        self._num_heads = config.num_heads
        self._head_dim = config.head_dim
        self._scoring = Scoring(config.attention_scale, config.attention_soft_cap)
        self._rotated: tuple[slice, ...] = (
            slice(None),
            slice(config.num_heads + config.num_kv_heads),
        )
        if layer.rope is not None and layer.rope.num_dims(config.head_dim) < config.head_dim:
            self._rotated += (slice(layer.rope.num_dims(config.head_dim)),)

    @classmethod
    def load(
        cls, reader: WeightReader, name: str, config: ModelConfig, layer: LayerConfig
    ) -> "Attention":
        """Reads the projections under `name`, and the norms where there are any."""
        num_queries = config.num_heads * config.head_dim
        num_keys = config.num_kv_heads * config.head_dim
        names, sizes = config.family.query_names, [num_queries, num_keys, num_keys]
        if len(names) == 1:
            sizes = [sum(sizes)]
        parts = {f"{name}.{part}": size for part, size in zip(names, sizes, strict=True)}
        has_bias = config.attention_bias
        qkv = Linear.load(
            reader,
            parts,
            config.hidden_size,
            has_bias=has_bias or config.family.has_query_bias,
        )
        norms = QueryKeyNorms.load(reader, name, config)
        output_parts = {f"{name}.o_proj": config.hidden_size}
        output = Linear.load(reader, output_parts, num_queries, has_bias=has_bias)
        return cls(qkv, norms, output, config, layer)

    def __call__(
        self, x_TH: Tensor, rotation: Rotation | None, plan: AttentionPlan, cache: LayerCache
    ) -> Tensor:
        """Writes the tokens' keys and values, then attends; [T, H]."""
        qkv_TRD = self._qkv(x_TH).view(len(x_TH), -1, self._head_dim)
        if self._norms is not None:
            self._norms(qkv_TRD)
        if rotation is not None:
            rotate_(qkv_TRD[self._rotated], rotation)
        queries_TND = qkv_TRD[:, : self._num_heads]
        cache.write(plan.cache_rows_T, qkv_TRD[:, self._num_heads :])
        return self._output(attend(queries_TND, cache, plan, self._scoring).flatten(1))
