"""A contiguous part of a decoder: which layers it has, and with them embedding or head.

Free of slots, steps and streams: it is given positions, an attention plan and a cache. Start here
to read the model.

Shapes: T tokens, H hidden size, V vocabulary, B rows to sample from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.layer_config import LayerConfig
from runtime.model_config import ModelConfig
from runtime.rope_config import RopeConfig
from stage_worker.kv_cache import LayerCache
from stage_worker.model.layers import DecoderLayer
from stage_worker.model.linear import Linear
from stage_worker.model.norm import Norm, load_norm
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

    @property
    def indices(self) -> range:
        """The layers by their numbers in the whole model."""
        return range(self.first_layer, self.first_layer + self.num_layers)

    def of(self, layers: Sequence[LayerConfig]) -> Sequence[LayerConfig]:
        """Those of the whole model's layers that are in this range."""
        return layers[self.first_layer : self.first_layer + self.num_layers]


class Head:
    """Final norm and the projection onto the vocabulary."""

    def __init__(self, norm: Norm, projection: Linear, config: ModelConfig) -> None:
        self._norm = norm
        self._projection = projection
        self._scale = config.logit_scale
        self._soft_cap = config.logit_soft_cap

    @classmethod
    def load(cls, reader: WeightReader, config: ModelConfig) -> "Head":
        """Reads the norm and the head, which is the embedding where the two are tied."""
        parts = {_head_name(config): config.vocab_size}
        projection = Linear.load(reader, parts, config.hidden_size, has_bias=False)
        return cls(load_norm(reader, _NORM, config), projection, config)

    def __call__(self, hidden_BH: Tensor) -> Tensor:
        """Logits, [B, V]."""
        logits_BV = self._projection(self._norm(hidden_BH))
        if self._scale != 1:
            logits_BV *= self._scale
        if self._soft_cap is not None:
            logits_BV = torch.tanh(logits_BV / self._soft_cap) * self._soft_cap
        return logits_BV


class Decoder:
    """One stage's part of the model.

    Layers differ in rope and in attention window: both are prepared once per step and kind.
    """

    def __init__(
        self,
        embedding_VH: Tensor | None,
        layers: Sequence[DecoderLayer],
        head: Head | None,
        ropes: Mapping[RopeConfig | None, RotaryEmbedding | None],
        config: ModelConfig,
        part: LayerRange,
    ) -> None:
        self._embedding_VH = embedding_VH
        self._embedding_scale = config.embedding_scale
        if embedding_VH is not None:
            # Rounded as the embedding is, which is how Gemma was trained.
            self._embedding_scale = float(embedding_VH.new_tensor(config.embedding_scale))
        self._layers = tuple(layers)
        self._head = head
        self._ropes = tuple(ropes.values())
        rope_numbers = {rope: number for number, rope in enumerate(ropes)}
        self._kinds = tuple((rope_numbers[of.rope], of.window) for of in part.of(config.layers))

    @classmethod
    def load(
        cls, reader: WeightReader, config: ModelConfig, part: LayerRange, max_model_len: int
    ) -> "Decoder":
        """Reads the largest tensors first: what packing needs on top is then freed for the rest."""
        head = Head.load(reader, config) if part.is_last else None
        embedding_VH = None
        if part.is_first:
            shape = (config.vocab_size, config.hidden_size)
            embedding_VH = reader.read(f"{_EMBEDDING}.weight", *shape)
        layers = [DecoderLayer.load(reader, index, config) for index in part.indices]
        ropes = {
            layer.rope: None
            if layer.rope is None
            else RotaryEmbedding(
                layer.rope,
                config.head_dim,
                max_model_len,
                dtype=reader.dtype,
                device=reader.device,
            )
            for layer in part.of(config.layers)
        }
        return cls(embedding_VH, layers, head, ropes, config, part)

    def embed(self, token_ids_T: Tensor) -> Tensor:
        """The tokens' embeddings, [T, H]; on the first part only."""
        assert self._embedding_VH is not None
        hidden_TH = F.embedding(token_ids_T, self._embedding_VH)
        return hidden_TH if self._embedding_scale == 1 else hidden_TH.mul_(self._embedding_scale)

    def forward(
        self,
        hidden_TH: Tensor,
        positions_T: Tensor,
        plans: Mapping[int | None, AttentionPlan],
        caches: Sequence[LayerCache],
    ) -> Tensor:
        """The output of this part's last layer, [T, H]; `plans` has one for each window."""
        rotations = [rope.rotation(positions_T) if rope else None for rope in self._ropes]
        for layer, (rope, window), cache in zip(self._layers, self._kinds, caches, strict=True):
            hidden_TH = layer(hidden_TH, rotations[rope], plans[window], cache)
        return hidden_TH

    def logits(self, hidden_BH: Tensor) -> Tensor:
        """Logits of the rows to sample from, [B, V]; on the last part only."""
        assert self._head is not None
        return self._head(hidden_BH)


def tensor_prefixes(config: ModelConfig, part: LayerRange) -> tuple[str, ...]:
    """Which tensors `Decoder.load` reads; the embedding twice where it is both ends."""
    first = (f"{_EMBEDDING}.",) if part.is_first else ()
    last = (f"{_head_name(config)}.", f"{_NORM}.") if part.is_last else ()
    return (*first, *(f"{_LAYER}.{index}." for index in part.indices), *last)


def _head_name(config: ModelConfig) -> str:
    return _EMBEDDING if config.tie_word_embeddings else "lm_head"
