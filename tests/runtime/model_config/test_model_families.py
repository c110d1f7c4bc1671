"""Every family's config.json: Transformers' classes are the reference for fields and defaults."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from runtime.errors import ModelConfigError
from runtime.model_config.families import FAMILIES
from runtime.model_config.layer_config import ExpertsConfig, LayerConfig
from runtime.model_config.model_config import ModelConfig, load_model_config
from runtime.model_config.rope_config import LinearScaling, LongRopeScaling, RopeConfig

REQUIRED = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "vocab_size": 200_000,
}
SPARSE = ("MixtralForCausalLM", "Qwen3MoeForCausalLM")
ARCHITECTURES = [family.architecture for family in FAMILIES]


def reference_config(architecture: str, **changes: Any) -> Any:
    return getattr(transformers, architecture).config_class(**REQUIRED | changes)


def load(folder: Path, architecture: str, **changes: Any) -> ModelConfig:
    values = {"architectures": [architecture], **REQUIRED, **changes}
    (folder / "config.json").write_text(json.dumps(values))
    return load_model_config(folder)


def assert_means_the_same(config: ModelConfig, reference: Any) -> None:
    """The fields that config and Transformers' object share, under either's names."""
    assert config.num_layers == reference.num_hidden_layers
    assert config.num_kv_heads == reference.num_key_value_heads
    assert config.head_dim == (getattr(reference, "head_dim", None) or 2)
    assert config.max_position_embeddings == reference.max_position_embeddings
    assert config.rms_norm_eps == reference.rms_norm_eps
    assert config.tie_word_embeddings == reference.tie_word_embeddings
    assert config.attention_bias == getattr(reference, "attention_bias", False)
    assert config.mlp_bias == getattr(reference, "mlp_bias", False)
    assert config.hidden_act == getattr(reference, config.family.activation_field)
    eos = reference.eos_token_id
    assert config.eos_token_ids == (() if eos is None else (eos,))
    assert config.attention_soft_cap == getattr(reference, "attn_logit_softcapping", None)
    assert config.logit_soft_cap == getattr(reference, "final_logit_softcapping", None)
    assert config.residual_scale == getattr(reference, "residual_multiplier", 1.0)
    assert config.logit_scale == 1 / getattr(reference, "logits_scaling", 1.0)
    num_experts = config.experts and config.experts.num_experts
    assert num_experts == getattr(reference, "num_local_experts", None)
    _assert_layers_alike(config, reference)


def _assert_layers_alike(config: ModelConfig, reference: Any) -> None:
    window = getattr(reference, "sliding_window", None)
    usual = "sliding_attention" if window else "full_attention"
    layer_types = getattr(reference, "layer_types", None) or [usual] * config.num_layers
    has_rope = getattr(reference, "no_rope_layers", [1] * config.num_layers)
    for index, layer in enumerate(config.layers):
        rope = reference.rope_parameters
        rope = rope.get(layer_types[index], rope)
        assert layer.window == (window if layer_types[index] == "sliding_attention" else None)
        assert (layer.rope is not None) == bool(has_rope[index])
        assert layer.rope is None or layer.rope.theta == rope["rope_theta"]
        assert layer.is_sparse == (config.family.architecture in SPARSE)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_config_of_few_fields_takes_the_defaults_of_its_family(
    architecture: str, tmp_path: Path
) -> None:
    assert_means_the_same(load(tmp_path, architecture), reference_config(architecture))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_config_as_transformers_saves_it_means_the_same(architecture: str, tmp_path: Path) -> None:
    reference = reference_config(architecture)
    reference.architectures = [architecture]
    reference.save_pretrained(tmp_path)
    assert_means_the_same(load_model_config(tmp_path), reference)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 3}),
        ("Qwen3ForCausalLM", {"use_sliding_window": True, "sliding_window": 7}),
        ("SmolLM3ForCausalLM", {"use_sliding_window": True, "sliding_window": 7}),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0, 0, 1, 1, 1, 1, 0]}),
        ("SmolLM3ForCausalLM", {"no_rope_layer_interval": 3}),
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        ("Gemma3ForCausalLM", {"sliding_window_pattern": 3}),
        ("Gemma3ForCausalLM", {"rope_theta": 5e5, "rope_local_base_freq": 300.0}),
        ("GraniteForCausalLM", {"logits_scaling": 8.0, "residual_multiplier": 0.25}),
        ("MistralForCausalLM", {"sliding_window": None, "rope_theta": 1e6}),
    ],
)
def test_config_options_mean_what_transformers_makes_of_them(
    architecture: str, options: dict[str, Any], tmp_path: Path
) -> None:
    config = load(tmp_path, architecture, **options)
    assert_means_the_same(config, reference_config(architecture, **options))


def test_config_scales_come_from_each_familys_own_field(tmp_path: Path) -> None:
    granite = load(
        tmp_path, "GraniteForCausalLM", attention_multiplier=0.1, embedding_multiplier=12
    )
    assert (granite.attention_scale, granite.embedding_scale) == (0.1, 12.0)
    gemma = load(tmp_path, "Gemma2ForCausalLM", query_pre_attn_scalar=144)
    assert (gemma.attention_scale, gemma.embedding_scale) == (1 / 12, 8.0)
    assert load(tmp_path, "Qwen3ForCausalLM").attention_scale == 128**-0.5


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_config_of_experts_is_read_under_both_names(name: str, tmp_path: Path) -> None:
    values = {name: 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
    rest = {"norm_topk_prob": True, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["Qwen3MoeForCausalLM"], **REQUIRED, **values, **rest})
    )
    config = load_model_config(tmp_path)
    assert config.experts == ExpertsConfig(6, 3, 32, is_normalized=True)
    sparse = [index for index, layer in enumerate(config.layers) if layer.is_sparse]
    assert sparse == [1, 5, 7]


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2, 4]}


@pytest.mark.parametrize("rope_type", ["longrope", "su"])
def test_config_of_phi_as_published_has_partial_longrope(rope_type: str, tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "Phi3ForCausalLM",
        num_attention_heads=8,
        rope_scaling={**LONGROPE, "rope_type": None, "type": rope_type} | {"rope_type": rope_type},
        partial_rotary_factor=0.5,
        original_max_position_embeddings=64,
        max_position_embeddings=64**2,
    )
    scaling = LongRopeScaling((1.0, 1.5), (2.0, 4.0), 64, attention_factor=2**0.5)
    assert config.layers[0] == LayerConfig(RopeConfig(10_000.0, scaling, 0.5))


def test_config_of_gemma_scales_the_full_layers_rope_only(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    config = load(tmp_path, "Gemma3ForCausalLM", rope_scaling=scaling)
    assert config.layers[0].rope == RopeConfig(1e4, None)
    assert config.layers[5].rope == RopeConfig(1e6, LinearScaling(8.0))


@pytest.mark.parametrize(
    ("architecture", "field", "value"),
    [
        ("LlamaForCausalLM", "sliding_window", 128),
        ("LlamaForCausalLM", "attn_logit_softcapping", 50.0),
        ("LlamaForCausalLM", "num_experts", 8),
        ("LlamaForCausalLM", "embedding_multiplier", 12.0),
        ("LlamaForCausalLM", "partial_rotary_factor", 0.5),
        ("MistralForCausalLM", "attention_bias", True),
        ("MistralForCausalLM", "layer_types", ["full_attention"] * 8),
        ("MistralForCausalLM", "sliding_window", 0),
        ("Olmo2ForCausalLM", "clip_qkv", 8.0),
        ("Phi3ForCausalLM", "lm_head_bias", True),
        ("Gemma3ForCausalLM", "attn_logit_softcapping", 50.0),
        ("Gemma3ForCausalLM", "use_bidirectional_attention", True),
        ("Gemma3ForCausalLM", "rope_parameters", {"rope_type": "default"}),
        ("Gemma3ForCausalLM", "layer_types", ["chunked_attention"] * 8),
        ("Gemma3ForCausalLM", "layer_types", ["full_attention"] * 7),
        ("Gemma3ForCausalLM", "hidden_activation", "gelu"),
        ("Qwen2ForCausalLM", "layer_types", ["sliding_attention"] * 8),
        ("SmolLM3ForCausalLM", "no_rope_layers", [1, 0]),
        ("SmolLM3ForCausalLM", "no_rope_layers", ["1"] * 8),
        ("MixtralForCausalLM", "num_experts_per_tok", 9),
        ("Qwen3MoeForCausalLM", "mlp_only_layers", 3),
        ("Phi3ForCausalLM", "partial_rotary_factor", 1.5),
        ("Phi3ForCausalLM", "rope_scaling", {"rope_type": "longrope", "short_factor": [1.0]}),
        ("Phi3ForCausalLM", "rope_scaling", {"rope_type": "longrope"}),
        ("GraniteForCausalLM", "residual_multiplier", -1),
    ],
)
def test_config_value_that_a_family_does_not_know_is_refused_by_name(
    architecture: str, field: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(ModelConfigError, match=rf"config\.json.*{field}"):
        load(tmp_path, architecture, **{field: value})
