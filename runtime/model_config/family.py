"""The description of a model family: the differences between decoders, as plain data.

`families.py` has one entry per architecture; `model_config.py` reads a config.json by it, and
`stage_worker/model` builds its layers from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from runtime.model_config.sliding_window_rules import WindowRule, no_layer


@dataclass(frozen=True, slots=True)
class NormNames:
    """A layer's norms by position; None if the family has none there."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_feed_forward: str | None = "post_attention_layernorm"
    after_feed_forward: str | None = None


@dataclass(frozen=True, slots=True)
class FeedForwardNames:
    """The tensor names of the feed-forward network; `block`.experts.N for mixtures."""

    block: str = "mlp"
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"


class QueryKeyNorm(Enum):
    """The dimensions that a norm of queries and keys spans."""

    HEAD = "each head"
    ALL_HEADS = "all heads together"


OPTIONAL_FIELDS: Mapping[str, object] = MappingProxyType(
    {
        "attention_bias": False,
        "mlp_bias": False,
        "lm_head_bias": False,
        "clip_qkv": None,
        "use_bidirectional_attention": False,
        "sliding_window": None,
        "use_sliding_window": False,
        "layer_types": None,
        "no_rope_layers": None,
        "partial_rotary_factor": 1.0,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
        "attention_multiplier": None,
        "query_pre_attn_scalar": None,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "num_experts": None,
        "num_local_experts": None,
    }
)
"""Fields that change the computation, with their neutral value; null is neutral, too.

A family refuses any other value of a field that is not among its options.
"""


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture. `options` are the fields of `OPTIONAL_FIELDS` that it knows.

    `defaults` and `eos_token_id` are the values of fields that config.json omits. `windows` selects
    which layers look at a window where config.json has no list of them. `is_norm_centered`: norms'
    weights are stored less one. `has_local_rope`: sliding layers have a rope of their own.
    """

    architecture: str
    models: str
    options: frozenset[str] = frozenset()
    defaults: Mapping[str, object] = field(default_factory=dict)
    eos_token_id: int | None = 2
    norms: NormNames = NormNames()
    is_norm_centered: bool = False
    query_key_norm: QueryKeyNorm | None = None
    has_query_bias: bool = False
    query_names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    feed_forward: FeedForwardNames = FeedForwardNames()
    activation_field: str = "hidden_act"
    activation: str = "silu"
    is_embedding_scaled: bool = False
    windows: WindowRule = no_layer
    has_local_rope: bool = False
    normalizes_experts: bool = False
