"""One decoder layer: attention and feed-forward network, with the family's norms.

Hidden states are complete on every rank; each half ends with an all-reduce of the ranks' summands.

Shapes: T tokens, H hidden size.
"""

from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.model_config.model_config import ModelConfig
from runtime.model_config.tensor_parallel import RankShares
from stage_worker.collectives.group import RankGroup
from stage_worker.model.attention import Attention
from stage_worker.model.feed_forward import FeedForward, SparseFeedForward, load_feed_forward
from stage_worker.model.kv_cache import LayerCache
from stage_worker.model.norm import Norm, load_norm
from stage_worker.model.paged_attention import AttentionMetadata
from stage_worker.model.rope import Rotation
from stage_worker.model.weights import WeightReader


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """The norms before and after each half of a layer; None if the family has none."""

    before_attention: Norm | None
    after_attention: Norm | None
    before_feed_forward: Norm | None
    after_feed_forward: Norm | None

    @classmethod
    def load(cls, reader: WeightReader, layer_name: str, config: ModelConfig) -> "LayerNorms":
        """Reads the norms that the family has."""

        def read(name: str | None) -> Norm | None:
            return None if name is None else load_norm(reader, f"{layer_name}.{name}", config)

        names = config.family.norms
        return cls(
            read(names.before_attention),
            read(names.after_attention),
            read(names.before_feed_forward),
            read(names.after_feed_forward),
        )


class DecoderLayer:
    """Attention, then feed-forward, each times `residual_scale` added to its input."""

    def __init__(
        self,
        norms: LayerNorms,
        attention: Attention,
        feed_forward: FeedForward | SparseFeedForward,
        residual_scale: float,
    ) -> None:
        self._norms = norms
        self._attention = attention
        self._feed_forward = feed_forward
        self._residual_scale = residual_scale

    @classmethod
    def load(
        cls, reader: WeightReader, index: int, config: ModelConfig, shares: RankShares
    ) -> "DecoderLayer":
        """Reads this rank's shares of layer `index` of the whole model."""
        name, layer = f"model.layers.{index}", config.layers[index]
        return cls(
            LayerNorms.load(reader, name, config),
            Attention.load(reader, f"{name}.self_attn", config, layer, shares),
            load_feed_forward(reader, name, config, shares, is_sparse=layer.is_sparse),
            config.residual_scale,
        )

    def compute(
        self,
        hidden_TH: Tensor,
        rotation: Rotation | None,
        metadata: AttentionMetadata,
        cache: LayerCache,
        group: RankGroup,
    ) -> Generator[None, None, Tensor]:
        """Returns the layer's output, [T, H]; does not change its input.

        Yields while an all-reduce is in progress, when other rows can be computed.
        """
        norms = self._norms
        attended_TH = self._attention(
            _normed(norms.before_attention, hidden_TH), rotation, metadata, cache, group
        )
        attention_sum = group.begin_all_reduce_(attended_TH)
        yield
        attended_TH = _normed(norms.after_attention, attention_sum.finish())
        hidden_TH = _added(hidden_TH, attended_TH, self._residual_scale)
        fed_TH = self._feed_forward(_normed(norms.before_feed_forward, hidden_TH))
        feed_forward_sum = group.begin_all_reduce_(fed_TH)
        yield
        fed_TH = _normed(norms.after_feed_forward, feed_forward_sum.finish())
        return _added(hidden_TH, fed_TH, self._residual_scale)


def _normed(norm: Norm | None, x_TH: Tensor) -> Tensor:
    return x_TH if norm is None else norm(x_TH)


def _added(hidden_TH: Tensor, x_TH: Tensor, scale: float) -> Tensor:
    """A plain sum is cheaper, and nearly all families have scale 1."""
    return hidden_TH + x_TH if scale == 1 else torch.add(hidden_TH, x_TH, alpha=scale)
