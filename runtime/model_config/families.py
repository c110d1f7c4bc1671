"""The model families, one entry each: the differences to Llama.

Data only, and the source of docs/models.md. Names and defaults are those of Transformers'
configuration classes and of the checkpoints.
"""

from runtime.model_config.family import Family, FeedForwardNames, NormNames, QueryKeyNorm
from runtime.model_config.sliding_window_rules import (
    every_layer,
    from_first_window_layer,
    layers_without_rope,
    odd_ones_full,
    one_in_pattern_full,
)

_SANDWICH = NormNames(
    before_attention="input_layernorm",
    after_attention="post_attention_layernorm",
    before_feed_forward="pre_feedforward_layernorm",
    after_feed_forward="post_feedforward_layernorm",
)
_AFTER = NormNames(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_feed_forward=None,
    after_feed_forward="post_feedforward_layernorm",
)
_EXPERTS = frozenset({"num_experts", "num_local_experts"})
_GEMMA_OPTIONS = frozenset(
    {
        "attention_bias",
        "query_pre_attn_scalar",
        "final_logit_softcapping",
        "sliding_window",
        "layer_types",
    }
)
_GEMMA_DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_QWEN_OPTIONS = frozenset({"sliding_window", "use_sliding_window", "layer_types"})
_QWEN_DEFAULTS = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

FAMILIES: tuple[Family, ...] = (
    Family(
        "LlamaForCausalLM",
        "Llama 2 and 3, SmolLM2, TinyLlama",
        options=frozenset({"attention_bias", "mlp_bias"}),
    ),
    Family(
        "MistralForCausalLM",
        "Mistral 7B, Mistral Nemo, Mistral Small (text)",
        options=frozenset({"sliding_window"}),
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        windows=every_layer,
    ),
    Family(
        "Qwen2ForCausalLM",
        "Qwen2, Qwen2.5, QwQ",
        options=_QWEN_OPTIONS,
        defaults=_QWEN_DEFAULTS,
        has_query_bias=True,
        eos_token_id=None,
        windows=from_first_window_layer,
    ),
    Family(
        "Qwen3ForCausalLM",
        "Qwen3",
        options=_QWEN_OPTIONS | {"attention_bias"},
        defaults=_QWEN_DEFAULTS | {"head_dim": 128},
        query_key_norm=QueryKeyNorm.HEAD,
        eos_token_id=None,
        windows=from_first_window_layer,
    ),
    Family(
        "Qwen3MoeForCausalLM",
        "Qwen3 30B-A3B, 235B-A22B",
        options=_EXPERTS | {"attention_bias", "sliding_window", "use_sliding_window"},
        defaults={
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "num_experts": 128,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
        },
        query_key_norm=QueryKeyNorm.HEAD,
        eos_token_id=None,
        windows=every_layer,
    ),
    Family(
        "MixtralForCausalLM",
        "Mixtral 8x7B, 8x22B",
        options=_EXPERTS | {"sliding_window"},
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_experts": 8,
            "num_experts_per_tok": 2,
        },
        feed_forward=FeedForwardNames("block_sparse_moe", ("w1", "w3"), "w2"),
        windows=every_layer,
        normalizes_experts=True,
    ),
    Family(
        "SmolLM3ForCausalLM",
        "SmolLM3",
        options=_QWEN_OPTIONS | {"attention_bias", "mlp_bias", "no_rope_layers"},
        defaults={
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "rope_theta": 2e6,
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
        },
        eos_token_id=128001,
        windows=layers_without_rope,
    ),
    Family(
        "GraniteForCausalLM",
        "Granite 3",
        options=frozenset(
            {
                "attention_bias",
                "mlp_bias",
                "embedding_multiplier",
                "residual_multiplier",
                "attention_multiplier",
                "logits_scaling",
            }
        ),
        defaults={"attention_multiplier": 1.0},
    ),
    Family(
        "Olmo2ForCausalLM",
        "OLMo 2",
        options=frozenset({"attention_bias"}),
        defaults={"rms_norm_eps": 1e-5},
        eos_token_id=50279,
        norms=_AFTER,
        query_key_norm=QueryKeyNorm.ALL_HEADS,
    ),
    Family(
        "Phi3ForCausalLM",
        "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
        options=frozenset({"sliding_window", "partial_rotary_factor"}),
        defaults={
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
        eos_token_id=32000,
        query_names=("qkv_proj",),
        feed_forward=FeedForwardNames(gate_up=("gate_up_proj",)),
        windows=every_layer,
    ),
    Family(
        "Gemma2ForCausalLM",
        "Gemma 2",
        options=_GEMMA_OPTIONS | {"attn_logit_softcapping"},
        defaults=_GEMMA_DEFAULTS
        | {
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        eos_token_id=1,
        norms=_SANDWICH,
        is_norm_centered=True,
        activation_field="hidden_activation",
        activation="gelu_pytorch_tanh",
        is_embedding_scaled=True,
        windows=odd_ones_full,
    ),
    Family(
        "Gemma3ForCausalLM",
        "Gemma 3 (text: 270M, 1B)",
        options=_GEMMA_OPTIONS,
        defaults=_GEMMA_DEFAULTS
        | {
            "max_position_embeddings": 131072,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "sliding_window_pattern": 6,
        },
        eos_token_id=1,
        norms=_SANDWICH,
        is_norm_centered=True,
        query_key_norm=QueryKeyNorm.HEAD,
        activation_field="hidden_activation",
        activation="gelu_pytorch_tanh",
        is_embedding_scaled=True,
        windows=one_in_pattern_full,
        has_local_rope=True,
    ),
)
"""All supported architectures."""
