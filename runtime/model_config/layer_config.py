"""The differences between the layers of one model: RoPE, attention window, experts."""

from dataclasses import dataclass

from runtime.model_config.config_fields import ConfigFields
from runtime.model_config.family import Family
from runtime.model_config.rope_config import RopeConfig, read_local_rope, read_rope
from runtime.model_config.sliding_window_rules import has_rope

_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """One layer; a token attends to itself and `window` - 1 before it, or to all if None."""

    rope: RopeConfig | None
    window: int | None = None
    is_sparse: bool = False


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Each token goes through `num_active` of the `num_experts` networks of a sparse layer.

    `is_normalized` scales the weights of the chosen ones to a sum of 1.
    """

    num_experts: int
    num_active: int
    intermediate_size: int
    is_normalized: bool


def read_layers(
    fields: ConfigFields, family: Family, num_layers: int, head_dim: int
) -> tuple[LayerConfig, ...]:
    """Makes the configuration of each layer."""
    if family.has_local_rope:
        rope, local_rope = read_local_rope(fields, head_dim)
    else:
        rope = local_rope = read_rope(fields, family, head_dim)
    window = _window(fields, family)
    slides = _slides(fields, family, num_layers)
    if window is None and fields.values.get("layer_types") is not None and any(slides):
        fields.fail("`layer_types` has sliding layers, but there is no `sliding_window`")
    return tuple(
        LayerConfig(
            rope=(local_rope if slides[index] else rope) if has_rope(fields, index) else None,
            window=window if slides[index] else None,
            is_sparse=_is_sparse(fields, index),
        )
        for index in range(num_layers)
    )


def read_experts(fields: ConfigFields, family: Family) -> ExpertsConfig | None:
    """The mixture of experts; None for a dense model."""
    name = _num_experts_field(fields)
    if fields.values.get(name) is None:
        return None
    num_experts = fields.integer(name)
    size = fields.integer("intermediate_size")
    return ExpertsConfig(
        num_experts=num_experts,
        num_active=fields.integer("num_experts_per_tok", most=num_experts),
        intermediate_size=fields.integer("moe_intermediate_size", size),
        is_normalized=family.normalizes_experts or fields.flag("norm_topk_prob"),
    )


def _num_experts_field(fields: ConfigFields) -> str:
    """Qwen3's published files use one name, Transformers 5 writes the other."""
    is_local = fields.values.get("num_local_experts") is not None
    return "num_local_experts" if is_local else "num_experts"


def _is_sparse(fields: ConfigFields, layer: int) -> bool:
    if fields.values.get(_num_experts_field(fields)) is None:
        return False
    if fields.values.get("mlp_only_layers") and layer in fields.items("mlp_only_layers", int, 0):
        return False
    return (layer + 1) % fields.integer("decoder_sparse_step", 1) == 0


def _window(fields: ConfigFields, family: Family) -> int | None:
    if "use_sliding_window" in family.options and not fields.flag("use_sliding_window"):
        return None
    return fields.integer_or_none("sliding_window")


def _slides(fields: ConfigFields, family: Family, num_layers: int) -> list[bool]:
    if fields.values.get("layer_types") is None:
        return [family.windows(fields, index) for index in range(num_layers)]
    layer_types = fields.items("layer_types", str, num_layers)
    for layer_type in layer_types:
        if layer_type not in (_FULL, _SLIDING):
            fields.fail(
                f"`layer_types` {layer_type!r} is not supported; supported: {_FULL}, {_SLIDING}"
            )
    return [layer_type == _SLIDING for layer_type in layer_types]
