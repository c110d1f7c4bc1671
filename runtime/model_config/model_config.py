"""A model's config.json as checked, typed values.

Reads config.json and generation_config.json and nothing else: no weights, no tokenizer. Every value
is checked here, so the code that uses it may trust it, and what it does not know how to compute is
refused by name. Which architectures there are, and what differs in them, is `families.py`.
"""

from dataclasses import dataclass
from pathlib import Path

from runtime.errors import UnknownArchitectureError
from runtime.model_config.config_fields import ConfigFields, read_config_fields
from runtime.model_config.families import FAMILIES
from runtime.model_config.family import OPTIONAL_FIELDS, Family
from runtime.model_config.layer_config import ExpertsConfig, LayerConfig, read_experts, read_layers

KNOWN_ARCHITECTURES = tuple(family.architecture for family in FAMILIES)
KNOWN_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
KNOWN_DTYPES = ("float32", "bfloat16", "float16")

_MAX_LAYERS = 2**12


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The dimensions and layers of a decoder; sizes are counts of elements, never bytes.

    `attention_scale` multiplies products of queries and keys; a soft cap c turns x into
    c * tanh(x / c), of those products or of the logits. The other scales multiply embeddings, what
    a layer's halves add to its input, and logits. `eos_token_ids` is what ends generation
    (generation_config.json before config.json). `torch_dtype` is the dtype that the checkpoint
    states.
    """

    family: Family
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    layers: tuple[LayerConfig, ...]
    experts: ExpertsConfig | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    hidden_act: str
    attention_scale: float
    attention_soft_cap: float | None
    logit_soft_cap: float | None
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    torch_dtype: str

    @property
    def num_layers(self) -> int:
        """The number of layers of the model."""
        return len(self.layers)


def load_model_config(folder: Path) -> ModelConfig:
    """Reads config.json and, for the end-of-sequence tokens, generation_config.json.

    Raises `UnknownArchitectureError` for a model that this server has no code for, and
    `ModelConfigError`, naming file and field, for anything absent, absurd or unsupported.
    """
    fields = read_config_fields(folder, "config.json")
    family = _family(fields)
    _check_options(fields, family)
    fields.values = dict(family.defaults) | fields.values
    config = _read(fields, family, folder)
    if config.num_heads % config.num_kv_heads:
        problem = f"is not a multiple of `num_key_value_heads` {config.num_kv_heads}"
        fields.fail(f"`num_attention_heads` {config.num_heads} {problem}")
    return config


def _read(fields: ConfigFields, family: Family, folder: Path) -> ModelConfig:
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    head_dim = fields.integer("head_dim", hidden_size // num_heads)
    vocab_size = fields.integer("vocab_size")
    num_layers = fields.integer("num_hidden_layers", most=_MAX_LAYERS)
    embedding_scale = hidden_size**0.5 if family.is_embedding_scaled else 1.0
    return ModelConfig(
        family=family,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        intermediate_size=fields.integer("intermediate_size"),
        vocab_size=vocab_size,
        max_position_embeddings=fields.integer("max_position_embeddings", 2048, least=2),
        rms_norm_eps=fields.positive("rms_norm_eps", 1e-6),
        layers=read_layers(fields, family, num_layers, head_dim),
        experts=read_experts(fields, family),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        hidden_act=fields.choice(family.activation_field, family.activation, KNOWN_ACTIVATIONS),
        attention_scale=_attention_scale(fields, head_dim),
        attention_soft_cap=fields.positive_or_none("attn_logit_softcapping"),
        logit_soft_cap=fields.positive_or_none("final_logit_softcapping"),
        embedding_scale=fields.positive("embedding_multiplier", embedding_scale),
        residual_scale=fields.positive("residual_multiplier", 1.0),
        logit_scale=1 / fields.positive("logits_scaling", 1.0),
        eos_token_ids=_eos_token_ids(folder, fields, family, vocab_size),
        bos_token_id=next(iter(fields.token_ids("bos_token_id", None, vocab_size)), None),
        torch_dtype=_dtype(fields),
    )


def _family(fields: ConfigFields) -> Family:
    names = fields.values.get("architectures")
    if not isinstance(names, list) or not names:
        fields.fail("`architectures` is missing")
    for family in FAMILIES:
        if family.architecture == names[0]:
            return family
    raise UnknownArchitectureError(architecture=str(names[0]), known=KNOWN_ARCHITECTURES)


def _check_options(fields: ConfigFields, family: Family) -> None:
    if fields.values.get("quantization_config") is not None:
        fields.fail("`quantization_config`: quantized checkpoints are not supported")
    for name, neutral in OPTIONAL_FIELDS.items():
        value = fields.values.get(name)
        if name not in family.options and value is not None and value != neutral:
            fields.fail(f"`{name}` {value!r} is not supported for {family.architecture}")


def _attention_scale(fields: ConfigFields, head_dim: int) -> float:
    scale = float(fields.positive("query_pre_attn_scalar", head_dim) ** -0.5)
    return fields.positive("attention_multiplier", scale)


def _dtype(fields: ConfigFields) -> str:
    """Transformers 5 writes `dtype`, earlier versions `torch_dtype`."""
    name = "torch_dtype" if fields.values.get("dtype") is None else "dtype"
    return fields.choice(name, "float32", KNOWN_DTYPES)


def _eos_token_ids(
    folder: Path, config: ConfigFields, family: Family, vocab_size: int
) -> tuple[int, ...]:
    if (folder / "generation_config.json").exists():
        generation = read_config_fields(folder, "generation_config.json")
        if generation.values.get("eos_token_id") is not None:
            return generation.token_ids("eos_token_id", None, vocab_size)
    default = family.eos_token_id
    if default is not None and default >= vocab_size:
        default = None
    return config.token_ids("eos_token_id", default, vocab_size)
