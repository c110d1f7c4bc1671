"""The layers with a sliding window, if config.json has no list: one function per rule.

Layers count from 0. The rules are those of Transformers' configuration classes.
"""

from collections.abc import Callable

from runtime.model_config.config_fields import ConfigFields

WindowRule = Callable[[ConfigFields, int], bool]
"""Whether this layer's attention is limited to `sliding_window`, if there is one."""


def no_layer(fields: ConfigFields, layer: int) -> bool:
    """In no layer."""
    return False


def every_layer(fields: ConfigFields, layer: int) -> bool:
    """In all layers."""
    return True


def from_first_window_layer(fields: ConfigFields, layer: int) -> bool:
    """In all but the first `max_window_layers` layers."""
    return layer >= fields.integer("max_window_layers", 28, least=0)


def layers_without_rope(fields: ConfigFields, layer: int) -> bool:
    """In the layers without rope."""
    return not has_rope(fields, layer)


def odd_ones_full(fields: ConfigFields, layer: int) -> bool:
    """In layers 0, 2, 4 and so on."""
    return layer % 2 == 0


def one_in_pattern_full(fields: ConfigFields, layer: int) -> bool:
    """In all but the last of every `sliding_window_pattern` layers."""
    return (layer + 1) % fields.integer("sliding_window_pattern", 6) != 0


def has_rope(fields: ConfigFields, layer: int) -> bool:
    """By `no_rope_layers`, where 1 means that there is one, or by `no_rope_layer_interval`."""
    if fields.values.get("no_rope_layers") is not None:
        return fields.items("no_rope_layers", int, layer + 1)[layer] != 0
    interval = fields.values.get("no_rope_layer_interval")
    return interval is None or (layer + 1) % fields.integer("no_rope_layer_interval") != 0
