"""Self-attention of one layer: projections, norms of queries and keys, rotation, cache.

Queries, keys and values are computed in one product, also if the checkpoint has three tensors. A
rank has some of the heads; its result is its summand of the output.

Shapes: T tokens, H hidden size, N query heads and K key/value heads of this rank, D head dimension,
R = N + 2K.
"""

from torch import Tensor

from runtime.model_config.layer_config import LayerConfig
from runtime.model_config.model_config import ModelConfig
from runtime.model_config.tensor_parallel import RankShares, scaled, shifted
from stage_worker.collectives.group import RankGroup
from stage_worker.model.kv_cache import LayerCache
from stage_worker.model.linear import Linear, Rows
from stage_worker.model.norm import QueryKeyNorms, load_query_key_norms
from stage_worker.model.paged_attention import AttentionMetadata, Scoring, attend
from stage_worker.model.rope import Rotation, rotate_
from stage_worker.model.weights import WeightReader


class Attention:
    """Self-attention over the paged cache."""

    def __init__(
        self,
        qkv: Linear,
        norms: QueryKeyNorms | None,
        output: Linear,
        config: ModelConfig,
        layer: LayerConfig,
        shares: RankShares,
    ) -> None:
        self._qkv = qkv
        self._norms = norms
        self._output = output
        self._num_heads = len(shares.heads)
        self._head_dim = config.head_dim
        self._scoring = Scoring(config.attention_scale, config.attention_soft_cap)
        self._rotated: tuple[slice, ...] = (
            slice(None),
            slice(len(shares.heads) + len(shares.kv_heads)),
        )
        if layer.rope is not None and layer.rope.num_dims(config.head_dim) < config.head_dim:
            self._rotated += (slice(layer.rope.num_dims(config.head_dim)),)

    @classmethod
    def load(
        cls,
        reader: WeightReader,
        name: str,
        config: ModelConfig,
        layer: LayerConfig,
        shares: RankShares,
    ) -> "Attention":
        """Reads the projections under `name`, and the norms if the family has any."""
        has_bias = config.attention_bias
        qkv = Linear.load(
            reader,
            _qkv_rows(name, config, shares),
            config.hidden_size,
            has_bias=has_bias or config.family.has_query_bias,
        )
        norms = load_query_key_norms(reader, name, config, shares)
        output = Linear.load(
            reader,
            [Rows.all_of(f"{name}.o_proj", config.hidden_size)],
            config.num_heads * config.head_dim,
            has_bias=has_bias and shares.rank == 0,
            inputs=scaled(shares.heads, config.head_dim),
        )
        return cls(qkv, norms, output, config, layer, shares)

    def __call__(
        self,
        x_TH: Tensor,
        rotation: Rotation | None,
        metadata: AttentionMetadata,
        cache: LayerCache,
        group: RankGroup,
    ) -> Tensor:
        """Writes the tokens' keys and values, then attends; returns this rank's summand, [T, H]."""
        qkv_TRD = self._qkv(x_TH).view(len(x_TH), -1, self._head_dim)
        if self._norms is not None:
            self._norms(qkv_TRD, group)
        if rotation is not None:
            rotate_(qkv_TRD[self._rotated], rotation)
        queries_TND = qkv_TRD[:, : self._num_heads]
        cache.write(metadata.cache_rows_T, qkv_TRD[:, self._num_heads :])
        return self._output(attend(queries_TND, cache, metadata, self._scoring).flatten(1))


def _qkv_rows(name: str, config: ModelConfig, shares: RankShares) -> list[Rows]:
    """This rank's rows of queries, keys and values, from three tensors or a fused one."""
    num_queries = config.num_heads * config.head_dim
    num_keys = config.num_kv_heads * config.head_dim
    queries = scaled(shares.heads, config.head_dim)
    keys = scaled(shares.kv_heads, config.head_dim)
    names = config.family.query_names
    if len(names) == 1:
        fused, num_rows = f"{name}.{names[0]}", num_queries + 2 * num_keys
        intervals = (queries, shifted(keys, num_queries), shifted(keys, num_queries + num_keys))
        return [Rows(fused, num_rows, interval) for interval in intervals]
    sizes, intervals = (num_queries, num_keys, num_keys), (queries, keys, keys)
    return [
        Rows(f"{name}.{part}", size, interval)
        for part, size, interval in zip(names, sizes, intervals, strict=True)
    ]
