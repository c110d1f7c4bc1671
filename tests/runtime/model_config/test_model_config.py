"""config.json as Transformers writes it, old and new, and everything that is refused in it."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from runtime.errors import ModelConfigError, UnknownArchitectureError
from runtime.model_config.families import FAMILIES
from runtime.model_config.layer_config import LayerConfig
from runtime.model_config.model_config import ModelConfig, load_model_config
from runtime.model_config.rope_config import LinearScaling, Llama3Scaling, RopeConfig

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def write(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(SMALL | changes))
    return folder


def load(folder: Path, **changes: Any) -> ModelConfig:
    return load_model_config(write(folder, **changes))


def test_config_of_few_fields_takes_the_defaults_of_transformers(tmp_path: Path) -> None:
    config = load(tmp_path)
    reference: Any = LlamaConfig(**{k: v for k, v in SMALL.items() if k != "architectures"})
    assert config == ModelConfig(
        family=FAMILIES[0],
        hidden_size=64,
        num_heads=4,
        num_kv_heads=reference.num_key_value_heads,
        head_dim=reference.head_dim,
        intermediate_size=96,
        vocab_size=100,
        max_position_embeddings=reference.max_position_embeddings,
        rms_norm_eps=reference.rms_norm_eps,
        layers=(LayerConfig(RopeConfig(reference.rope_parameters["rope_theta"], None)),) * 4,
        experts=None,
        tie_word_embeddings=reference.tie_word_embeddings,
        attention_bias=reference.attention_bias,
        mlp_bias=reference.mlp_bias,
        hidden_act=reference.hidden_act,
        attention_scale=reference.head_dim**-0.5,
        attention_soft_cap=None,
        logit_soft_cap=None,
        embedding_scale=1.0,
        residual_scale=1.0,
        logit_scale=1.0,
        eos_token_ids=(reference.eos_token_id,),
        bos_token_id=None,
        torch_dtype="float32",
    )


def test_config_as_transformers_saves_it_is_read_whole(tmp_path: Path) -> None:
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        num_key_value_heads=8,
        head_dim=64,
        rope_parameters=LLAMA3 | {"rope_theta": 500_000.0},
        tie_word_embeddings=True,
        attention_bias=True,
        eos_token_id=[3, 5],
        bos_token_id=7,
        dtype="bfloat16",
    ).save_pretrained(tmp_path)
    config = load_model_config(tmp_path)
    assert (config.num_kv_heads, config.head_dim) == (8, 64)
    assert config.layers[0].rope == RopeConfig(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))
    assert config.tie_word_embeddings
    assert config.attention_bias
    assert (config.eos_token_ids, config.bos_token_id) == ((3, 5), 7)
    assert config.torch_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "rope"),
    [
        ({"rope_theta": 500.0}, RopeConfig(500.0, None)),
        ({"rope_theta": 500, "rope_scaling": None}, RopeConfig(500.0, None)),
        (
            {"rope_theta": 500.0, "rope_scaling": LLAMA3},
            RopeConfig(500.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}},
            RopeConfig(10_000.0, LinearScaling(2.0)),
        ),
    ],
)
def test_config_of_earlier_transformers_is_read_alike(
    tmp_path: Path, changes: dict[str, Any], rope: RopeConfig
) -> None:
    assert load(tmp_path, **changes).layers[0].rope == rope


@pytest.mark.parametrize(("eos", "expected"), [(4, (4,)), ([4, 9], (4, 9)), (None, (3,))])
def test_eos_of_generation_config_comes_first(
    tmp_path: Path, eos: object, expected: tuple[int, ...]
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    assert load(tmp_path, eos_token_id=3).eos_token_ids == expected


def test_eos_of_null_means_none(tmp_path: Path) -> None:
    assert load(tmp_path, eos_token_id=None).eos_token_ids == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", None),
        ("hidden_size", 0),
        ("hidden_size", -64),
        ("hidden_size", 64.0),
        ("hidden_size", "64"),
        ("hidden_size", True),
        ("num_hidden_layers", 10**9),
        ("vocab_size", 2**40),
        ("num_key_value_heads", 3),
        ("head_dim", 15),
        ("rms_norm_eps", -1e-6),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", float("inf")),
        ("rope_theta", 10**400),
        ("tie_word_embeddings", 1),
        ("hidden_act", "gelu"),
        ("eos_token_id", 100),
        ("eos_token_id", [-1]),
        ("eos_token_id", ["2"]),
        ("dtype", "int8"),
        ("rope_parameters", 5),
        ("rope_parameters", {"rope_type": "yarn", "factor": 2.0}),
        ("rope_scaling", {"rope_type": "linear"}),
        ("rope_scaling", {"rope_type": "linear", "factor": 0}),
        ("rope_scaling", LLAMA3 | {"high_freq_factor": 1.0}),
        ("rope_scaling", {"partial_rotary_factor": 0.5}),
        ("quantization_config", {"quant_method": "gptq"}),
        ("architectures", None),
        ("architectures", []),
    ],
)
def test_config_with_bad_value_is_refused_by_name(
    tmp_path: Path, field: str, value: object
) -> None:
    named = "num_attention_heads" if field == "num_key_value_heads" else field
    with pytest.raises(ModelConfigError, match=rf"config\.json.*{named}"):
        load(tmp_path, **{field: value})


def test_config_of_unknown_rope_type_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="'yarn' is not supported; supported: default"):
        load(tmp_path, rope_parameters={"rope_type": "yarn"})


def test_config_of_unknown_architecture_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(UnknownArchitectureError, match=r"'BertModel'.*supported: LlamaForCausalLM"):
        load(tmp_path, architectures=["BertModel"])


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff", "[" * 100_000])
def test_config_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelConfigError, match=r"config\.json"):
        load_model_config(tmp_path)


def test_config_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"there is no config\.json"):
        load_model_config(tmp_path)
