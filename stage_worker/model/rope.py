"""Rotary position embeddings: the angles of positions, and the rotation.

Source: Su et al., "RoFormer" (2021); scalings as in Transformers' `modeling_rope_utils`.

Shapes: T tokens, N heads, D rotated dimensions. Elements i and i + D/2 are one pair, as in
checkpoints in Hugging Face layout.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.model_config.rope_config import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
)


@dataclass(frozen=True, slots=True)
class Rotation:
    """A step's angles; the first half of `sin_T1D` has the rotation's minus sign."""

    cos_T1D: Tensor
    sin_T1D: Tensor


class RotaryEmbedding:
    """Computes a step's `Rotation`; angles are float32 in every model dtype.

    `max_model_len`, the longest sequence that is served, selects the factors of LongRoPE.
    """

    def __init__(
        self,
        config: RopeConfig,
        head_dim: int,
        max_model_len: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        num_dims = config.num_dims(head_dim)
        self._inverse_frequencies = _inverse_frequencies(config, num_dims, max_model_len).to(device)
        self._dtype = dtype
        self._factor = 1.0
        if isinstance(config.scaling, LongRopeScaling):
            self._factor = config.scaling.attention_factor

    def rotation(self, positions_T: Tensor) -> Rotation:
        """The angles of the positions, computed once per step and used by every layer."""
        angles = positions_T.float()[:, None, None] * self._inverse_frequencies
        cos, sin = angles.cos().mul_(self._factor), angles.sin().mul_(self._factor)
        return Rotation(
            cos_T1D=torch.cat((cos, cos), dim=-1).to(self._dtype),
            sin_T1D=torch.cat((-sin, sin), dim=-1).to(self._dtype),
        )


def rotate_(heads_TND: Tensor, rotation: Rotation) -> None:
    """Rotates queries and keys in place."""
    swapped_TND = heads_TND.roll(heads_TND.shape[-1] // 2, dims=-1)
    heads_TND.mul_(rotation.cos_T1D).addcmul_(swapped_TND, rotation.sin_T1D)


def _inverse_frequencies(config: RopeConfig, num_dims: int, max_model_len: int) -> Tensor:
    exponents = torch.arange(0, num_dims, 2, dtype=torch.int64).float() / num_dims
    plain = 1.0 / (config.theta**exponents)
    match config.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling)
        case LongRopeScaling() as scaling:
            return plain / torch.tensor(_longrope_factors(scaling, max_model_len))


def _longrope_factors(scaling: LongRopeScaling, max_model_len: int) -> tuple[float, ...]:
    """The same factors for all sequences, because cached keys cannot change theirs."""
    if max_model_len > scaling.original_max_position_embeddings:
        return scaling.long_factors
    return scaling.short_factors


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Stretches wavelengths above the low-frequency bound, with a smooth transition."""
    wavelengths = 2 * math.pi / plain
    original = scaling.original_max_position_embeddings
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = (original / wavelengths - low) / (high - low)
    between = (1 - smooth) * plain / scaling.factor + smooth * plain
    stretched = torch.where(wavelengths > original / low, plain / scaling.factor, plain)
    is_between = (wavelengths <= original / low) & (wavelengths >= original / high)
    return torch.where(is_between, between, stretched)
