"""The embedding and the output head, split over the ranks by the vocabulary.

Shapes: T tokens, H hidden size, B rows to sample from, V vocabulary, U this rank's share of it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.model_config.model_config import ModelConfig
from runtime.model_config.tensor_parallel import RankShares, share_widths
from stage_worker.collectives.group import RankGroup
from stage_worker.model.linear import Linear, Rows
from stage_worker.model.norm import Norm, load_norm
from stage_worker.model.weights import WeightReader

_EMBEDDING = "model.embed_tokens"
_NORM = "model.norm"


class Embedding:
    """The embedding rows of this rank's share of the vocabulary."""

    def __init__(self, weight_UH: Tensor, config: ModelConfig, shares: RankShares) -> None:
        self._weight_UH = weight_UH
        self._vocab = shares.vocab
        # Rounded to the embedding's dtype, as in Gemma's training.
        self._scale = float(torch.tensor(config.embedding_scale, dtype=weight_UH.dtype))

    @classmethod
    def load(cls, reader: WeightReader, config: ModelConfig, shares: RankShares) -> "Embedding":
        """Reads this rank's rows."""
        weight_UH = reader.empty(len(shares.vocab), config.hidden_size)
        shape = (config.vocab_size, config.hidden_size)
        reader.read_into(f"{_EMBEDDING}.weight", weight_UH, shape, (shares.vocab.start, 0))
        return cls(weight_UH, config, shares)

    def __call__(self, token_ids_T: Tensor, group: RankGroup) -> Tensor:
        """The tokens' embeddings, [T, H], complete on every rank."""
        if group.size == 1:
            hidden_TH = F.embedding(token_ids_T, self._weight_UH)
        else:
            rows_T = token_ids_T - self._vocab.start
            is_elsewhere_T = (rows_T < 0) | (rows_T >= len(self._vocab))
            hidden_TH = F.embedding(rows_T.masked_fill_(is_elsewhere_T, 0), self._weight_UH)
            hidden_TH.masked_fill_(is_elsewhere_T[:, None], 0)
            hidden_TH = group.all_reduce_(hidden_TH)
        return hidden_TH if self._scale == 1 else hidden_TH.mul_(self._scale)


class Head:
    """Final norm and the projection onto this rank's share of the vocabulary."""

    def __init__(
        self, norm: Norm, projection: Linear, config: ModelConfig, shares: RankShares
    ) -> None:
        self._norm = norm
        self._projection = projection
        self._widths = share_widths(config.vocab_size, shares.size)
        self._scale = config.logit_scale
        self._soft_cap = config.logit_soft_cap

    @classmethod
    def load(cls, reader: WeightReader, config: ModelConfig, shares: RankShares) -> "Head":
        """Reads the norm and the head, which is the embedding if the two are tied."""
        name = _EMBEDDING if config.tie_word_embeddings else "lm_head"
        parts = [Rows(name, config.vocab_size, shares.vocab)]
        projection = Linear.load(reader, parts, config.hidden_size, has_bias=False)
        return cls(load_norm(reader, _NORM, config), projection, config, shares)

    def __call__(self, hidden_BH: Tensor, group: RankGroup) -> Tensor | None:
        """Logits, [B, V], on rank 0, which samples; None on the others."""
        logits_BU = self._projection(self._norm(hidden_BH))
        if self._scale != 1:
            logits_BU *= self._scale
        if self._soft_cap is not None:
            logits_BU = torch.tanh(logits_BU / self._soft_cap) * self._soft_cap
        return group.gather(logits_BU, self._widths)
