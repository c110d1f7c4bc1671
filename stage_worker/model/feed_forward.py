"""The feed-forward half of a layer: one gated network, or several that tokens are sent to.

Gate and up projections are one product, whether the checkpoint has them so or not.

Shapes: T tokens, H hidden size, F feed-forward size, E experts, A active experts of a token, M
tokens sent to one expert.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.model_config import ModelConfig
from stage_worker.model.linear import Linear
from stage_worker.weights import WeightReader

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
    def load(cls, reader: WeightReader, name: str, config: ModelConfig, size: int) -> "FeedForward":
        """Reads the projections under `name`, to and from `size` elements."""
        names = config.family.feed_forward
        parts = {f"{name}.{part}": 2 * size // len(names.gate_up) for part in names.gate_up}
        has_bias = config.mlp_bias
        gate_up = Linear.load(reader, parts, config.hidden_size, has_bias=has_bias)
        down_parts = {f"{name}.{names.down}": config.hidden_size}
        down = Linear.load(reader, down_parts, size, has_bias=has_bias)
        return cls(gate_up, down, _ACTIVATIONS[config.hidden_act])

    def __call__(self, x_TH: Tensor) -> Tensor:
        """The network's output, [T, H]."""
        gate_TF, up_TF = self._gate_up(x_TH).chunk(2, dim=-1)
        return self._down(self._activation(gate_TF).mul_(up_TF))


class SparseFeedForward:
    """A mixture of experts: a router weighs the networks, the best few compute each token.

    Source: Jiang et al., "Mixtral of Experts" (2024).
    """

    def __init__(
        self,
        router: Linear,
        experts: Sequence[FeedForward],
        num_active: int,
        *,
        is_normalized: bool,
    ) -> None:
        self._router = router
        self._experts = tuple(experts)
        self._num_active = num_active
        self._is_normalized = is_normalized

    @classmethod
    def load(cls, reader: WeightReader, name: str, config: ModelConfig) -> "SparseFeedForward":
        """Reads router and experts under `name`."""
        spec = config.experts
        assert spec is not None
        router_parts = {f"{name}.gate": spec.num_experts}
        router = Linear.load(reader, router_parts, config.hidden_size, has_bias=False)
        experts = [
            FeedForward.load(reader, f"{name}.experts.{index}", config, spec.intermediate_size)
            for index in range(spec.num_experts)
        ]
        return cls(router, experts, spec.num_active, is_normalized=spec.is_normalized)

    def __call__(self, x_TH: Tensor) -> Tensor:
        """The active experts' outputs, weighted and added up, [T, H]."""
        shares_TE = self._router(x_TH).softmax(dim=-1, dtype=torch.float32)
        shares_TA, experts_TA = shares_TE.topk(self._num_active, dim=-1)
        if self._is_normalized:
            shares_TA /= shares_TA.sum(dim=-1, keepdim=True)
        shares_TA = shares_TA.to(x_TH.dtype)
        out_TH = torch.zeros_like(x_TH)
        for expert in experts_TA.unique().tolist():
            rows_M, places_M = (experts_TA == expert).nonzero(as_tuple=True)
            out_MH = self._experts[expert](x_TH[rows_M])
            out_TH.index_add_(0, rows_M, out_MH.mul_(shares_TA[rows_M, places_M, None]))
        return out_TH


def load_feed_forward(
    reader: WeightReader, layer_name: str, config: ModelConfig, *, is_sparse: bool
) -> FeedForward | SparseFeedForward:
    """The network of the layer `layer_name`."""
    name = f"{layer_name}.{config.family.feed_forward.block}"
    if is_sparse:
        return SparseFeedForward.load(reader, name, config)
    return FeedForward.load(reader, name, config, config.intermediate_size)
