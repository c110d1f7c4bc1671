"""The feed-forward half of a layer: one gated network, or a mixture of experts.

Gate and up projections are computed in one product, also if the checkpoint has two tensors. A rank
has some of a network's features, or some of the experts whole; its result is its summand of the
output.

Shapes: T tokens, H hidden size, F this rank's feed-forward size, E experts, A active experts of a
token, M tokens sent to one expert.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.model_config.model_config import ModelConfig
from runtime.model_config.tensor_parallel import RankShares, shifted
from stage_worker.model.linear import Linear, Rows
from stage_worker.model.weights import WeightReader

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


class FeedForward:
    """The gated network: down(activation(gate) * up)."""

    def __init__(
        self, gate_up: Linear, down: Linear, activation: Callable[[Tensor], Tensor]
    ) -> None:
        self._gate_up = gate_up
        self._down = down
        self._activation = activation

    @classmethod
    def load(
        cls,
        reader: WeightReader,
        name: str,
        config: ModelConfig,
        size: int,
        features: range,
    ) -> "FeedForward":
        """Reads `features`, out of `size`, of the projections under `name`.

        The rank with the first feature also has the output's bias.
        """
        names = config.family.feed_forward
        parts = [Rows(f"{name}.{part}", size, features) for part in names.gate_up]
        if len(names.gate_up) == 1:
            fused = f"{name}.{names.gate_up[0]}"
            parts = [Rows(fused, 2 * size, shifted(features, offset)) for offset in (0, size)]
        gate_up = Linear.load(reader, parts, config.hidden_size, has_bias=config.mlp_bias)
        down = Linear.load(
            reader,
            [Rows.all_of(f"{name}.{names.down}", config.hidden_size)],
            size,
            has_bias=config.mlp_bias and features.start == 0,
            inputs=features,
        )
        return cls(gate_up, down, _ACTIVATIONS[config.hidden_act])

    def __call__(self, x_TH: Tensor) -> Tensor:
        """This rank's summand of the network's output, [T, H]."""
        gate_TF, up_TF = self._gate_up(x_TH).chunk(2, dim=-1)
        return self._down(self._activation(gate_TF).mul_(up_TF))


class SparseFeedForward:
    """A mixture of experts: a router selects and weights the experts of each token.

    Source: Jiang et al., "Mixtral of Experts" (2024).
    """

    def __init__(
        self,
        router: Linear,
        experts: Mapping[int, FeedForward],
        num_active: int,
        *,
        is_normalized: bool,
    ) -> None:
        self._router = router
        self._experts = experts
        self._num_active = num_active
        self._is_normalized = is_normalized

    @classmethod
    def load(
        cls, reader: WeightReader, name: str, config: ModelConfig, shares: RankShares
    ) -> "SparseFeedForward":
        """Reads the router and this rank's experts under `name`."""
        spec = config.experts
        assert spec is not None
        router_parts = [Rows.all_of(f"{name}.gate", spec.num_experts)]
        router = Linear.load(reader, router_parts, config.hidden_size, has_bias=False)
        size = spec.intermediate_size
        experts = {
            index: FeedForward.load(reader, f"{name}.experts.{index}", config, size, range(size))
            for index in shares.experts
        }
        return cls(router, experts, spec.num_active, is_normalized=spec.is_normalized)

    def __call__(self, x_TH: Tensor) -> Tensor:
        """The weighted sum of this rank's active experts' outputs, [T, H]."""
        shares_TE = self._router(x_TH).softmax(dim=-1, dtype=torch.float32)
        shares_TA, experts_TA = shares_TE.topk(self._num_active, dim=-1)
        if self._is_normalized:
            shares_TA /= shares_TA.sum(dim=-1, keepdim=True)
        shares_TA = shares_TA.to(x_TH.dtype)
        out_TH = torch.zeros_like(x_TH)
        for expert in self._experts.keys() & experts_TA.unique().tolist():
            rows_M, places_M = (experts_TA == expert).nonzero(as_tuple=True)
            out_MH = self._experts[expert](x_TH[rows_M])
            out_TH.index_add_(0, rows_M, out_MH.mul_(shares_TA[rows_M, places_M, None]))
        return out_TH


def load_feed_forward(
    reader: WeightReader,
    layer_name: str,
    config: ModelConfig,
    shares: RankShares,
    *,
    is_sparse: bool,
) -> FeedForward | SparseFeedForward:
    """Reads the feed-forward network of the layer `layer_name`."""
    name = f"{layer_name}.{config.family.feed_forward.block}"
    if is_sparse:
        return SparseFeedForward.load(reader, name, config, shares)
    size = config.intermediate_size
    return FeedForward.load(reader, name, config, size, shares.intermediate)
