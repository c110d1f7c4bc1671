"""Rotary position embeddings of config.json: base, rotated share of the head, scaling.

Owns the reading of `rope_parameters` and of the fields that came before it. The mathematics is in
`stage_worker/model/rope.py`.
"""

import math
from dataclasses import dataclass, replace

from runtime.model_config.config_fields import ConfigFields
from runtime.model_config.family import Family

KNOWN_ROPE_TYPES = ("default", "linear", "llama3", "longrope", "su")
"""The last is the name of `longrope` in Phi-3's first files."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3's rule: scales long wavelengths by `factor`, keeps short ones, blends in between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """One factor for each frequency: `long_factors` for contexts beyond the original length.

    `attention_factor` multiplies cosines and sines either way (Ding et al., "LongRoPE", 2024).
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """`theta` is the base; the first `rotated_share` of each head is rotated."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | LongRopeScaling | None
    rotated_share: float = 1.0

    def num_dims(self, head_dim: int) -> int:
        """The number of rotated dimensions of a head."""
        return int(head_dim * self.rotated_share)


def read_rope(config: ConfigFields, family: Family, head_dim: int) -> RopeConfig:
    """The RoPE of a model whose layers share it.

    Transformers 5 keeps everything in `rope_parameters`, earlier versions in two fields.
    """
    name = "rope_scaling" if config.values.get("rope_scaling") else "rope_parameters"
    theta = config.positive("rope_theta", 10_000.0)
    fields = config.section(name)
    share = fields.positive("partial_rotary_factor", config.positive("partial_rotary_factor", 1.0))
    if share != 1 and "partial_rotary_factor" not in family.options:
        fields.fail(f"`partial_rotary_factor` {share} is not supported for {family.architecture}")
    return _read(config, fields, RopeConfig(theta, None, share), head_dim)


def read_local_rope(config: ConfigFields, head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    """The RoPE of full and of sliding-window layers, for models with two.

    Earlier versions of Transformers scale the full layers' only, and call the other one's base
    `rope_local_base_freq`.
    """
    theta = config.positive("rope_theta", 10_000.0)
    local_theta = config.positive("rope_local_base_freq", 10_000.0)
    sections = config.section("rope_parameters")
    if sections.values and not {"full_attention", "sliding_attention"} & sections.values.keys():
        config.fail("`rope_parameters` must hold `full_attention` and `sliding_attention`")
    full, local = sections.section("full_attention"), sections.section("sliding_attention")
    if config.values.get("rope_scaling"):
        full = config.section("rope_scaling")
    return (
        _read(config, full, RopeConfig(theta, None), head_dim),
        _read(config, local, RopeConfig(local_theta, None), head_dim),
    )


def _read(
    config: ConfigFields, fields: ConfigFields, default: RopeConfig, head_dim: int
) -> RopeConfig:
    """`config` has the values that some models keep outside of `fields`."""
    rope = replace(default, theta=fields.positive("rope_theta", default.theta))
    num_dims = rope.num_dims(head_dim)
    if not 2 <= num_dims <= head_dim or num_dims % 2:
        fields.fail(
            f"`head_dim` {head_dim} times `partial_rotary_factor` {rope.rotated_share} must be"
            f" pairs of dimensions within the head, not {num_dims}"
        )
    type_field = "rope_type" if "rope_type" in fields.values else "type"
    match fields.choice(type_field, "default", KNOWN_ROPE_TYPES):
        case "linear":
            return replace(rope, scaling=LinearScaling(fields.positive("factor")))
        case "llama3":
            return replace(rope, scaling=_llama3(config, fields))
        case "longrope" | "su":
            return replace(rope, scaling=_longrope(config, fields, num_dims // 2))
        case _:
            return rope


def _llama3(config: ConfigFields, fields: ConfigFields) -> Llama3Scaling:
    original = config.integer("max_position_embeddings", 2048)
    scaling = Llama3Scaling(
        factor=fields.positive("factor"),
        low_freq_factor=fields.positive("low_freq_factor"),
        high_freq_factor=fields.positive("high_freq_factor"),
        original_max_position_embeddings=fields.integer(
            "original_max_position_embeddings", original
        ),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        fields.fail("`high_freq_factor` must be greater than `low_freq_factor`")
    return scaling


def _longrope(config: ConfigFields, fields: ConfigFields, num_factors: int) -> LongRopeScaling:
    """The original length; Phi-3's files have it in `config`, which takes precedence."""
    context = config.integer("max_position_embeddings", 2048)
    inside = fields.integer("original_max_position_embeddings", context)
    original = config.integer("original_max_position_embeddings", inside)
    factor = fields.positive("factor", context / original)
    attention_factor = 1.0
    if factor > 1 and original > 1:
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original))
    return LongRopeScaling(
        short_factors=fields.positives("short_factor", num_factors),
        long_factors=fields.positives("long_factor", num_factors),
        original_max_position_embeddings=original,
        attention_factor=fields.positive("attention_factor", attention_factor),
    )
