"""Converts GGUF metadata to config.json, generation_config.json and tokenizer files.

Owns the meaning of llama.cpp's metadata keys (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)
for the architectures that this server knows. Converts no weights; imports no torch.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFValueType
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from runtime.errors import CheckpointError, ModelConfigError, UnknownArchitectureError
from runtime.model_config.config_fields import ConfigFields

KNOWN_GGUF_ARCHITECTURES: Final = ("llama",)
ROPE_FACTORS: Final = "rope_freqs.weight"
_ARRAY_TYPE_BYTES: Final = 4

_SPECIAL_TOKENS: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_END_OF_TURN_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


class _StrictReader(GGUFReader):
    """A reader that raises instead of reading past the end of the file.

    The library's slices come back short instead, and a false array count then loops for ever.
    """

    def _get(
        self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None
    ) -> Any:
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError(f"it is truncated: {len(self.data)} bytes are too few")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == GGUFValueType.ARRAY:
            count = int(self._get(orig_offs + _ARRAY_TYPE_BYTES, np.uint64)[0])
            if count > len(self.data) - orig_offs:
                raise ValueError(
                    f"an array of {count} items does not fit its {len(self.data)} bytes"
                )
        return super()._get_field_parts(orig_offs, raw_type)


def open_gguf(file: Path) -> GGUFReader:
    """Maps the file and reads its metadata; raises `CheckpointError` if it is invalid."""
    try:
        return _StrictReader(file)
    except (OSError, ValueError, KeyError, IndexError, OverflowError) as exc:
        raise CheckpointError(folder=str(file), problem=f"no readable GGUF file: {exc}") from exc


def read_metadata(file: Path, reader: GGUFReader) -> ConfigFields:
    """The metadata by key; raises `UnknownArchitectureError` for an unsupported model."""
    try:
        values = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, IndexError) as exc:
        raise CheckpointError(folder=str(file), problem=f"its metadata is broken: {exc}") from exc
    fields = ConfigFields(file, "metadata", values)
    architecture = fields.values.get("general.architecture")
    if architecture not in KNOWN_GGUF_ARCHITECTURES:
        raise UnknownArchitectureError(
            architecture=str(architecture), known=KNOWN_GGUF_ARCHITECTURES
        )
    if fields.integer("llama.expert_count", 0, least=0):
        raise UnknownArchitectureError(
            architecture="llama with experts", known=KNOWN_GGUF_ARCHITECTURES
        )
    return fields


def model_config(fields: ConfigFields, reader: GGUFReader) -> dict[str, object]:
    """config.json of a `LlamaForCausalLM`."""
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in tensors:
        raise CheckpointError(folder=str(fields.folder), problem="token_embd.weight is missing")
    hidden_size = fields.integer("llama.embedding_length")
    num_heads = fields.integer("llama.attention.head_count")
    head_dim = fields.integer("llama.attention.key_length", hidden_size // num_heads)
    if fields.integer("llama.rope.dimension_count", head_dim) != head_dim:
        fields.fail("`llama.rope.dimension_count`: only a whole head can be rotated")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer("llama.feed_forward_length"),
        "num_hidden_layers": fields.integer("llama.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields.integer("llama.attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": fields.integer("llama.context_length"),
        "rms_norm_eps": fields.positive("llama.attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope_parameters(fields, tensors.get(ROPE_FACTORS), head_dim),
        "vocab_size": int(tensors["token_embd.weight"].shape[-1]),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "bos_token_id": _token_id(fields, "bos_token_id"),
        "eos_token_id": _token_id(fields, "eos_token_id"),
        "pad_token_id": _token_id(fields, "padding_token_id"),
        "dtype": "float32",
    }


def generation_config(fields: ConfigFields) -> dict[str, object]:
    """Makes generation_config.json: a chat model may end its turn with a token of its own."""
    ids = [_token_id(fields, key) for key in _END_OF_TURN_KEYS]
    return {
        "bos_token_id": _token_id(fields, "bos_token_id"),
        "eos_token_id": sorted({token_id for token_id in ids if token_id is not None}) or None,
        "pad_token_id": _token_id(fields, "padding_token_id"),
    }


def save_tokenizer(fields: ConfigFields, folder: Path) -> None:
    """Writes tokenizer.json and its companions, equal to those of Transformers' GGUF conversion."""
    prefix = "tokenizer.ggml."
    parts = {k.removeprefix(prefix): v for k, v in fields.values.items() if k.startswith(prefix)}
    tokens = parts.get("tokens")
    if not isinstance(tokens, list):
        fields.fail("`tokenizer.ggml.tokens` is missing")
    description = parts | {
        "tokenizer_type": parts.get("model"),
        "pre_tokenizer_type": parts.get("pre"),
    }
    try:
        backend, _ = convert_gguf_tokenizer("llama", description)
        tokenizer = TokenizersBackend(
            tokenizer_object=backend,
            add_bos_token=parts.get("add_bos_token", parts.get("model") == "llama"),
            add_eos_token=parts.get("add_eos_token", False),
            chat_template=fields.values.get("tokenizer.chat_template"),
            **_special_tokens(parts, tokens),
        )
    except Exception as exc:  # the Rust library raises nothing finer
        raise ModelConfigError(folder=str(fields.folder), problem=f"tokenizer: {exc!r}") from exc
    tokenizer.save_pretrained(folder)


def _special_tokens(parts: Mapping[str, object], tokens: list[str]) -> dict[str, str | None]:
    ids = {name: parts.get(key) for name, key in _SPECIAL_TOKENS.items()}
    return {
        name: tokens[token_id] if isinstance(token_id, int) and token_id < len(tokens) else None
        for name, token_id in ids.items()
    }


def _token_id(fields: ConfigFields, key: str) -> int | None:
    name = f"tokenizer.ggml.{key}"
    return None if fields.values.get(name) is None else fields.integer(name, least=0)


def _rope_parameters(fields: ConfigFields, factors: Any, head_dim: int) -> dict[str, object]:
    theta = fields.positive("llama.rope.freq_base", 10_000.0)
    known = ("none", "linear")
    if fields.choice("llama.rope.scaling.type", "none", known) == "linear":
        factor = fields.positive("llama.rope.scaling.factor")
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if factors is None:
        return {"rope_type": "default", "rope_theta": theta}
    scaling = llama3_parameters(float(np.max(factors.data)))
    expected = llama3_factors(theta, head_dim, scaling)
    if factors.data.shape != expected.shape or not np.allclose(factors.data, expected, rtol=1e-4):
        fields.fail(f"{ROPE_FACTORS} holds a scaling of positions other than Llama 3's")
    return {"rope_type": "llama3", "rope_theta": theta, **scaling}


def llama3_parameters(factor: float) -> dict[str, float]:
    """The RoPE parameters of the published Llama 3.x models, which differ in `factor` only."""
    return {
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def llama3_factors(
    theta: float, head_dim: int, scaling: Mapping[str, float]
) -> npt.NDArray[np.float64]:
    """The divisors of the frequencies, which llama.cpp stores instead of the parameters.

    Source: `generate_extra_tensors` of llama.cpp's conversion of `LlamaForCausalLM`.
    """
    factor, low, high, context = scaling.values()
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((context / wavelengths - low) / (high - low), 0.0, 1.0)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))
