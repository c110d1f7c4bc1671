"""Root-mean-square norms: of hidden states, and of queries and keys.

Shapes: T tokens, H normed size, N query heads and K key/value heads of this rank, D head dimension,
R = N + 2K.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.model_config.family import QueryKeyNorm
from runtime.model_config.model_config import ModelConfig
from runtime.model_config.tensor_parallel import RankShares, scaled
from stage_worker.collectives.group import RankGroup
from stage_worker.model.weights import WeightReader


class RMSNorm:
    """Divides by the root of the mean square, then scales (Zhang and Sennrich, 2019)."""

    def __init__(self, weight_H: Tensor, eps: float) -> None:
        self._weight_H = weight_H
        self._eps = eps

    def __call__(self, x_TH: Tensor) -> Tensor:
        """The normed rows, [T, H]."""
        return F.rms_norm(x_TH, self._weight_H.shape, self._weight_H, self._eps)


class CenteredRMSNorm:
    """An `RMSNorm` whose weight is stored minus one, as in Gemma; computed in float32.

    In the dtypes of the stored weights, 1 + weight would lose precision.
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
    """Reads `name`.weight of `size`, by default the hidden size."""
    weight_H = reader.read(f"{name}.weight", size or config.hidden_size)
    if config.family.is_norm_centered:
        return CenteredRMSNorm(weight_H, config.rms_norm_eps)
    return RMSNorm(weight_H, config.rms_norm_eps)


class HeadNorms:
    """Norms each head of queries and keys separately, in place."""

    def __init__(self, queries: Norm, keys: Norm, shares: RankShares) -> None:
        self._norms = (queries, keys)
        self._sizes = (len(shares.heads), len(shares.kv_heads))

    def __call__(self, qkv_TRD: Tensor, group: RankGroup) -> None:
        """Norms queries and keys; does not change the values."""
        for heads, norm in zip(_split(qkv_TRD, self._sizes), self._norms, strict=True):
            heads.copy_(norm(heads))


class AllHeadsNorms:
    """Norms all query heads of a token as one row, and all key heads as another, in place.

    The mean square is over the heads of all ranks, so the sums of squares are all-reduced.
    """

    def __init__(
        self, weights: tuple[Tensor, Tensor], config: ModelConfig, shares: RankShares
    ) -> None:
        self._weights = weights
        self._sizes = (len(shares.heads), len(shares.kv_heads))
        # A single key/value head is on all ranks, and each counts it.
        num_kv_heads = shares.size if config.num_kv_heads == 1 else config.num_kv_heads
        num_heads = torch.tensor([config.num_heads, num_kv_heads])
        self._num_elements_2 = (num_heads * config.head_dim).to(weights[0].device)
        self._eps = config.rms_norm_eps

    def __call__(self, qkv_TRD: Tensor, group: RankGroup) -> None:
        """Norms queries and keys; does not change the values."""
        rows = [heads.flatten(1).float() for heads in _split(qkv_TRD, self._sizes)]
        squares_T2 = torch.stack([row.square().sum(dim=1) for row in rows], dim=1)
        squares_T2 = group.all_reduce_(squares_T2)
        scales_T2 = torch.rsqrt(squares_T2 / self._num_elements_2 + self._eps)
        heads = zip(_split(qkv_TRD, self._sizes), rows, self._weights, scales_T2.T, strict=True)
        for heads_TND, row, weight, scale_T in heads:
            heads_TND.copy_((row * scale_T[:, None] * weight).view_as(heads_TND))


QueryKeyNorms = HeadNorms | AllHeadsNorms


def load_query_key_norms(
    reader: WeightReader, name: str, config: ModelConfig, shares: RankShares
) -> QueryKeyNorms | None:
    """Reads the two norms under `name`; None if the family has none."""
    names = (f"{name}.q_norm", f"{name}.k_norm")
    match config.family.query_key_norm:
        case None:
            return None
        case QueryKeyNorm.HEAD:
            queries, keys = (load_norm(reader, each, config, config.head_dim) for each in names)
            return HeadNorms(queries, keys, shares)
        case QueryKeyNorm.ALL_HEADS:
            queries_W = _read_interval(reader, names[0], config, config.num_heads, shares.heads)
            keys_W = _read_interval(reader, names[1], config, config.num_kv_heads, shares.kv_heads)
            return AllHeadsNorms((queries_W, keys_W), config, shares)


def _read_interval(
    reader: WeightReader, name: str, config: ModelConfig, num_heads: int, heads: range
) -> Tensor:
    """The elements of `heads` in a norm's weight."""
    elements = scaled(heads, config.head_dim)
    weight_W = reader.empty(len(elements))
    shape = (num_heads * config.head_dim,)
    reader.read_into(f"{name}.weight", weight_W, shape, (elements.start, 0))
    return weight_W


def _split(qkv_TRD: Tensor, sizes: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Queries and keys."""
    queries_TND, keys_TKD, _ = qkv_TRD.split((*sizes, sizes[1]), dim=1)
    return queries_TND, keys_TKD
