"""A contiguous range of a decoder's layers, with the embedding or the head at the model's ends.

Inputs are positions, attention metadata and a cache; slots, steps and streams are elsewhere.

A rank holds its shares of every layer. Every collective is a visible call on the group that is
passed in: here, in `layers.py`, `vocabulary.py` and `norm.py`.

Shapes: T tokens of the step or of a slice of it, H hidden size, W this rank's interval of it,
V vocabulary, B rows to sample from.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from runtime.model_config.layer_config import LayerConfig
from runtime.model_config.model_config import ModelConfig
from runtime.model_config.rope_config import RopeConfig
from runtime.model_config.tensor_parallel import RankShares, share_widths
from stage_worker.collectives.group import RankGroup
from stage_worker.model.interleaving import SliceMetadata, run_alternately
from stage_worker.model.kv_cache import LayerCache
from stage_worker.model.layers import DecoderLayer
from stage_worker.model.rope import RotaryEmbedding
from stage_worker.model.vocabulary import Embedding, Head
from stage_worker.model.weights import WeightReader


@dataclass(frozen=True, slots=True)
class LayerRange:
    """A range of the model's layers; the first also has the embedding, the last the head."""

    first_layer: int
    num_layers: int
    is_first: bool
    is_last: bool

    @property
    def indices(self) -> range:
        """The layers' indices in the model."""
        return range(self.first_layer, self.first_layer + self.num_layers)

    def of(self, layers: Sequence[LayerConfig]) -> Sequence[LayerConfig]:
        """The entries of `layers`, one for each of the model's layers, that are in this range."""
        return layers[self.first_layer : self.first_layer + self.num_layers]


class Decoder:
    """One stage's part of the model.

    Layers may differ in rope and attention window; each is prepared once per step and kind.
    """

    def __init__(
        self,
        embedding: Embedding | None,
        layers: Sequence[DecoderLayer],
        head: Head | None,
        ropes: Mapping[RopeConfig | None, RotaryEmbedding | None],
        kinds: Sequence[LayerConfig],
        hidden_widths: Sequence[int],
    ) -> None:
        self._embedding = embedding
        self._layers = tuple(layers)
        self._head = head
        self._ropes = tuple(ropes.values())
        rope_numbers = {rope: number for number, rope in enumerate(ropes)}
        self._kinds = tuple((rope_numbers[kind.rope], kind.window) for kind in kinds)
        self._hidden_widths = hidden_widths

    @classmethod
    def load(
        cls,
        reader: WeightReader,
        config: ModelConfig,
        part: LayerRange,
        shares: RankShares,
        max_model_len: int,
    ) -> "Decoder":
        """Reads the largest tensors first, so that memory for packing them is free again later."""
        head = Head.load(reader, config, shares) if part.is_last else None
        embedding = Embedding.load(reader, config, shares) if part.is_first else None
        layers = [DecoderLayer.load(reader, index, config, shares) for index in part.indices]
        kinds = part.of(config.layers)
        ropes = {
            kind.rope: None
            if kind.rope is None
            else RotaryEmbedding(
                kind.rope,
                config.head_dim,
                max_model_len,
                dtype=reader.dtype,
                device=reader.device,
            )
            for kind in kinds
        }
        widths = share_widths(config.hidden_size, shares.size)
        return cls(embedding, layers, head, ropes, kinds, widths)

    def embed(self, token_ids_T: Tensor, group: RankGroup) -> Tensor:
        """The tokens' embeddings, [T, H]; on the first stage only."""
        assert self._embedding is not None
        return self._embedding(token_ids_T, group)

    def gather_hidden(self, hidden_TW: Tensor, group: RankGroup) -> Tensor:
        """Gathers the previous stage's hidden states from the ranks' intervals, [T, H]."""
        return group.all_gather(hidden_TW, self._hidden_widths)

    def forward(
        self,
        hidden_TH: Tensor,
        slices: Sequence[SliceMetadata],
        caches: Sequence[LayerCache],
        group: RankGroup,
    ) -> Tensor:
        """The output of the last layer, [T, H]; `slices` together are its rows, in order.

        Slices alternate: while the all-reduce of one is in progress, the other computes.
        """
        return run_alternately(
            [self._through_layers(hidden_TH[part.rows], part, caches, group) for part in slices]
        )

    def _through_layers(
        self, hidden_TH: Tensor, part: SliceMetadata, caches: Sequence[LayerCache], group: RankGroup
    ) -> Generator[None, None, Tensor]:
        """Yields while an all-reduce is in progress; returns the output, [T, H]."""
        rotations = [rope.rotation(part.positions_T) if rope else None for rope in self._ropes]
        for layer, (rope, window), cache in zip(self._layers, self._kinds, caches, strict=True):
            metadata = part.attention[window]
            hidden_TH = yield from layer.compute(hidden_TH, rotations[rope], metadata, cache, group)
        return hidden_TH

    def logits(self, hidden_BH: Tensor, group: RankGroup) -> Tensor | None:
        """Logits of the rows to sample from, [B, V], on rank 0; on the last stage only."""
        assert self._head is not None
        return self._head(hidden_BH, group)
