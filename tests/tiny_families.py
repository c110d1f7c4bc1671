"""At least one tiny model per family, with the family's special features enabled.

Sliding windows are shorter than the tests' prompts and no multiple of the block size.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers

from tests.tiny_models import TinyModel, save_tiny_model

WINDOW = 20
MAX_POSITIONS = 4096


@dataclass(frozen=True, slots=True)
class TinyFamily:
    """`prompt_lengths` and `max_model_len` matter to models that depend on a prompt's length."""

    architecture: str
    options: dict[str, Any] = field(default_factory=dict)
    prompt_lengths: tuple[int, ...] = (1, 31, 7)
    max_model_len: int = MAX_POSITIONS


_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.9, 2.8, 3.7, 4.6, 5.5],
}


_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48}

TINY_FAMILIES = {
    "mistral": TinyFamily("MistralForCausalLM", {"sliding_window": WINDOW, "head_dim": 24}),
    "qwen2": TinyFamily("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2_window": TinyFamily(
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "qwen3": TinyFamily("Qwen3ForCausalLM", {"head_dim": 24, "attention_bias": True}),
    "qwen3_moe": TinyFamily(
        "Qwen3MoeForCausalLM", {**_EXPERTS, "norm_topk_prob": True, "mlp_only_layers": [1]}
    ),
    "qwen3_moe_plain": TinyFamily("Qwen3MoeForCausalLM", {**_EXPERTS, "decoder_sparse_step": 2}),
    "mixtral": TinyFamily("MixtralForCausalLM", {"num_local_experts": 4, "sliding_window": WINDOW}),
    "smollm3": TinyFamily("SmolLM3ForCausalLM", {"no_rope_layer_interval": 2}),
    "smollm3_window": TinyFamily(
        "SmolLM3ForCausalLM",
        {"no_rope_layers": [0, 1, 1, 0], "use_sliding_window": True, "sliding_window": WINDOW},
    ),
    "granite": TinyFamily(
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.125,
            "logits_scaling": 0.7,
        },
    ),
    "olmo2": TinyFamily("Olmo2ForCausalLM"),
    "olmo2_multi_query": TinyFamily("Olmo2ForCausalLM", {"num_key_value_heads": 1}),
    "phi3": TinyFamily("Phi3ForCausalLM", {"sliding_window": WINDOW}),
    "phi3_short": TinyFamily(
        "Phi3ForCausalLM",
        {"original_max_position_embeddings": 64, "rope_parameters": _LONGROPE},
        max_model_len=64,
    ),
    "phi3_long": TinyFamily(
        "Phi3ForCausalLM",
        {"original_max_position_embeddings": 16, "rope_parameters": _LONGROPE},
        prompt_lengths=(17, 31, 20),
    ),
    "gemma2": TinyFamily(
        "Gemma2ForCausalLM",
        {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 9,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 8.0,
        },
    ),
    "gemma3_multi_query": TinyFamily(
        "Gemma3ForCausalLM",
        {"num_key_value_heads": 1, "sliding_window": WINDOW, "sliding_window_pattern": 2},
    ),
    "gemma3": TinyFamily(
        "Gemma3ForCausalLM",
        {
            "sliding_window": WINDOW,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 9,
            "final_logit_softcapping": 8.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
}


def make_tiny_family(folder: Path, name: str, seed: int = 0) -> TinyModel:
    """Writes the model of that name into `folder`."""
    tiny = TINY_FAMILIES[name]
    model_class: Any = getattr(transformers, tiny.architecture)
    common = {
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 320,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    options = deepcopy(common | tiny.options)  # Transformers modifies it
    return save_tiny_model(folder, model_class, options, seed)
