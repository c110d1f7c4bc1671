"""Root-mean-square norms: of hidden states, and of queries and keys.

Shapes: T tokens, H normed size, N query heads, K key/value heads, D head dimension, R = N + 2K.
"""

import torch.nn.functional as F
from torch import Tensor

from runtime.family import QueryKeyNorm
from runtime.model_config import ModelConfig
from stage_worker.weights import WeightReader


class RMSNorm:
    """Divides by the root of the mean square, then scales (Zhang and Sennrich, 2019)."""

    def __init__(self, weight_H: Tensor, eps: float) -> None:
        self._weight_H = weight_H
        self._eps = eps

    def __call__(self, x_TH: Tensor) -> Tensor:
        """The normed rows, [T, H]."""
        return F.rms_norm(x_TH, self._weight_H.shape, self._weight_H, self._eps)


class CenteredRMSNorm:
    """An `RMSNorm` whose weight is stored less one, as Gemma does; always in float32.

    1 + weight has too few digits in the dtypes that such weights are stored in.
    """

    def __init__(self, weight_H: Tensor, eps: float) -> None:
        self._norm = RMSNorm(1 + weight_H.float(), eps)

    def __call__(self, x_TH: Tensor) -> Tensor:
        """The normed rows, [T, H], in the dtype of `x_TH`."""
        return self._norm(x_TH.float()).to(x_TH.dtype)


Norm = RMSNorm | CenteredRMSNorm


def load_norm(
    reader: WeightReader, name: str, config: ModelConfig, size: int | None = None
) -> Norm:
    """Reads `name`.weight, of the hidden size if no other is given."""
    weight_H = reader.read(f"{name}.weight", size or config.hidden_size)
    if config.family.is_norm_centered:
        return CenteredRMSNorm(weight_H, config.rms_norm_eps)
    return RMSNorm(weight_H, config.rms_norm_eps)


class QueryKeyNorms:
    """Norms queries and keys, in place: each head by itself, or all heads of a token as one row."""

    def __init__(self, queries: Norm, keys: Norm, config: ModelConfig) -> None:
        self._queries = queries
        self._keys = keys
        self._num_heads = config.num_heads
        self._num_kv_heads = config.num_kv_heads
        self._takes_all_heads = config.family.query_key_norm is QueryKeyNorm.ALL_HEADS

    @classmethod
    def load(cls, reader: WeightReader, name: str, config: ModelConfig) -> "QueryKeyNorms | None":
        """Reads the two norms under `name`; None where the family has none."""
        if config.family.query_key_norm is None:
            return None
        query_size = key_size = config.head_dim
        if config.family.query_key_norm is QueryKeyNorm.ALL_HEADS:
            query_size *= config.num_heads
            key_size *= config.num_kv_heads
        queries = load_norm(reader, f"{name}.q_norm", config, query_size)
        return cls(queries, load_norm(reader, f"{name}.k_norm", config, key_size), config)

    def __call__(self, qkv_TRD: Tensor) -> None:
        """Leaves the values as they are."""
        queries_TND, keys_TKD, _ = qkv_TRD.split(
            (self._num_heads, self._num_kv_heads, self._num_kv_heads), dim=1
        )
        for heads, norm in ((queries_TND, self._queries), (keys_TKD, self._keys)):
            rows = heads.flatten(1) if self._takes_all_heads else heads
            rows.copy_(norm(rows))
