"""A contiguous part of a decoder: which layers it has, and with them embedding or head.

Free of slots, steps and streams: it is given positions, an attention plan and a cache. Start here
to read the model.

Shapes: T tokens, H hidden size, V vocabulary, B rows to sample from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from runtime.model_config import ModelConfig
from stage_worker.kv_cache import LayerCache
from stage_worker.model.layers import DecoderLayer, RMSNorm
from stage_worker.model.linear import Linear
from stage_worker.model.paged_attention import AttentionPlan
from stage_worker.model.rope import RotaryEmbedding
from stage_worker.weights import WeightReader

_EMBEDDING = "model.embed_tokens"
_LAYER = "model.layers"
_NORM = "model.norm"


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers of the whole model; the first range also embeds, the last also has the head."""

    first_layer: int
    num_layers: int
    is_first: bool
    is_last: bool


class Head:
    """Final norm and the projection onto the vocabulary."""

    def __init__(self, norm: RMSNorm, projection: Linear) -> None:
        self._norm = norm
        self._projection = projection

    @classmethod
    def load(cls, reader: WeightReader, config: ModelConfig) -> "Head":
        """Reads the norm and the head, which is the embedding where the two are tied."""
        parts = {_head_name(config): config.vocab_size}
        projection = Linear.load(reader, parts, config.hidden_size, has_bias=False)
        return cls(RMSNorm.load(reader, _NORM, config), projection)

    def __call__(self, hidden_BH: Tensor) -> Tensor:
        """Logits, [B, V]."""
        return self._projection(self._norm(hidden_BH))


class Decoder:
    """One stage's part of the model."""

    def __init__(
        self,
        embedding_VH: Tensor | None,
        layers: Sequence[DecoderLayer],
        head: Head | None,
        rope: RotaryEmbedding,
    ) -> None:
        self._embedding_VH = embedding_VH
        self._layers = tuple(layers)
        self._head = head
        self._rope = rope

    @classmethod
    def load(
        cls, reader: WeightReader, config: ModelConfig, part: LayerRange, rope: RotaryEmbedding
    ) -> "Decoder":
        """Reads the largest tensors first: what packing needs on top is then freed for the rest."""
        head = Head.load(reader, config) if part.is_last else None
        embedding_VH = None
        if part.is_first:
            shape = (config.vocab_size, config.hidden_size)
            embedding_VH = reader.read(f"{_EMBEDDING}.weight", *shape)
        indices = range(part.first_layer, part.first_layer + part.num_layers)
        layers = [DecoderLayer.load(reader, index, config) for index in indices]
        return cls(embedding_VH, layers, head, rope)

    def embed(self, token_ids_T: Tensor) -> Tensor:
        """The tokens' embeddings, [T, H]; on the first part only."""
        assert self._embedding_VH is not None
        return F.embedding(token_ids_T, self._embedding_VH)

    def forward(
        self,
        hidden_TH: Tensor,
        positions_T: Tensor,
        plan: AttentionPlan,
        caches: Sequence[LayerCache],
    ) -> Tensor:
        """The output of this part's last layer, [T, H]."""
        rotation = self._rope.rotation(positions_T)
        for layer, cache in zip(self._layers, caches, strict=True):
            hidden_TH = layer(hidden_TH, rotation, plan, cache)
        return hidden_TH

    def logits(self, hidden_BH: Tensor) -> Tensor:
        """Logits of the rows to sample from, [B, V]; on the last part only."""
        assert self._head is not None
        return self._head(hidden_BH)


def tensor_prefixes(config: ModelConfig, part: LayerRange) -> tuple[str, ...]:
    """Which tensors `Decoder.load` reads; the embedding twice where it is both ends."""
    indices = range(part.first_layer, part.first_layer + part.num_layers)
    first = (f"{_EMBEDDING}.",) if part.is_first else ()
    last = (f"{_head_name(config)}.", f"{_NORM}.") if part.is_last else ()
    return (*first, *(f"{_LAYER}.{index}." for index in indices), *last)


def _head_name(config: ModelConfig) -> str:
    return _EMBEDDING if config.tie_word_embeddings else "lm_head"
