"""A model's config.json as checked, typed values; owns which architectures are known.

Reads config.json and generation_config.json and nothing else: no weights, no tokenizer. Every value
is checked here, so the code behind may trust it. Defaults are those of Transformers' `LlamaConfig`.
"""

from dataclasses import dataclass
from pathlib import Path

from runtime.config_fields import ConfigFields, read_config_fields
from runtime.errors import UnknownArchitectureError

KNOWN_ARCHITECTURES = ("LlamaForCausalLM",)
KNOWN_ACTIVATIONS = ("silu",)
KNOWN_DTYPES = ("float32", "bfloat16", "float16")
KNOWN_ROPE_TYPES = ("default", "linear", "llama3")

_MAX_LAYERS = 2**12


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3's rule: long wavelengths stretched by `factor`, short ones kept, between mixed."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embeddings over the whole head dimension; `theta` is the base."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the layers of a decoder are; sizes are counts of elements, never bytes.

    `eos_token_ids` is what ends generation (generation_config.json before config.json).
    `torch_dtype` is the dtype that the checkpoint says it was made for.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    hidden_act: str
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    torch_dtype: str


def load_model_config(folder: Path) -> ModelConfig:
    """Reads config.json and, for the end-of-sequence tokens, generation_config.json.

    Raises `UnknownArchitectureError` for a model that this server has no code for, and
    `ModelConfigError`, naming file and field, for anything absent, absurd or unsupported.
    """
    fields = read_config_fields(folder, "config.json")
    architecture = _architecture(fields)
    if fields.values.get("quantization_config") is not None:
        fields.fail("`quantization_config`: quantized checkpoints are not supported")
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    vocab_size = fields.integer("vocab_size")
    config = ModelConfig(
        architecture=architecture,
        num_layers=fields.integer("num_hidden_layers", most=_MAX_LAYERS),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=fields.integer("head_dim", hidden_size // num_heads),
        intermediate_size=fields.integer("intermediate_size"),
        vocab_size=vocab_size,
        max_position_embeddings=fields.integer("max_position_embeddings", 2048),
        rms_norm_eps=fields.positive("rms_norm_eps", 1e-6),
        rope=_rope(fields),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        hidden_act=fields.choice("hidden_act", "silu", KNOWN_ACTIVATIONS),
        eos_token_ids=_eos_token_ids(folder, fields, vocab_size),
        bos_token_id=next(iter(fields.token_ids("bos_token_id", None, vocab_size)), None),
        torch_dtype=_dtype(fields),
    )
    if config.num_heads % config.num_kv_heads:
        fields.fail(
            f"`num_attention_heads` {config.num_heads} is not a multiple of"
            f" `num_key_value_heads` {config.num_kv_heads}"
        )
    if config.head_dim % 2:
        fields.fail(f"`head_dim` must be even, not {config.head_dim}")
    return config


def _architecture(fields: ConfigFields) -> str:
    names = fields.values.get("architectures")
    if not isinstance(names, list) or not names:
        fields.fail("`architectures` is missing")
    if names[0] not in KNOWN_ARCHITECTURES:
        raise UnknownArchitectureError(architecture=str(names[0]), known=KNOWN_ARCHITECTURES)
    return str(names[0])


def _dtype(fields: ConfigFields) -> str:
    """Transformers 5 writes `dtype`, earlier versions `torch_dtype`."""
    name = "torch_dtype" if fields.values.get("dtype") is None else "dtype"
    return fields.choice(name, "float32", KNOWN_DTYPES)


def _rope(config: ConfigFields) -> RopeConfig:
    """Transformers 5 keeps everything in `rope_parameters`, earlier versions in two fields."""
    name = "rope_scaling" if config.values.get("rope_scaling") else "rope_parameters"
    values = config.values.get(name) or {}
    if not isinstance(values, dict):
        config.fail(f"`{name}` must be an object, not {values!r}")
    fields = ConfigFields(config.folder, f"{config.where}, {name}", values)
    theta = fields.positive("rope_theta", config.positive("rope_theta", 10_000.0))
    if fields.positive("partial_rotary_factor", 1.0) != 1.0:
        fields.fail("`partial_rotary_factor` other than 1 is not supported")
    type_field = "rope_type" if "rope_type" in values else "type"
    match fields.choice(type_field, "default", KNOWN_ROPE_TYPES):
        case "linear":
            return RopeConfig(theta, LinearScaling(fields.positive("factor")))
        case "llama3":
            return RopeConfig(theta, _llama3_scaling(config, fields))
        case _:
            return RopeConfig(theta, None)


def _llama3_scaling(config: ConfigFields, fields: ConfigFields) -> Llama3Scaling:
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


def _eos_token_ids(folder: Path, config: ConfigFields, vocab_size: int) -> tuple[int, ...]:
    if (folder / "generation_config.json").exists():
        generation = read_config_fields(folder, "generation_config.json")
        if generation.values.get("eos_token_id") is not None:
            return generation.token_ids("eos_token_id", None, vocab_size)
    return config.token_ids("eos_token_id", 2 if vocab_size > 2 else None, vocab_size)
