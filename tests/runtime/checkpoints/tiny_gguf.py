"""Small .gguf files: a random Llama of Transformers, written the way llama.cpp's converter does."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from runtime.checkpoints.gguf_conversion import convert_gguf

CORPUS = ["hello world, hello there", "the quick brown fox", "naïve café 世界 😀", "1234 5678"] * 4
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB_SIZE = 320

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True, slots=True)
class GgufOptions:
    """What a test wants to be different; `metadata` adds or, with None, removes integer keys."""

    architecture: str = "llama"
    sentencepiece: bool = False
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
    metadata: dict[str, int] = field(default_factory=dict)
    rope_scaling: tuple[str, float] | None = None
    tensors: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)


def make_model(**changes: Any) -> LlamaForCausalLM:
    """Four layers, four heads over two KV heads, random weights."""
    config: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    return LlamaForCausalLM(LlamaConfig(**config | changes))


def write_gguf(file: Path, model: LlamaForCausalLM, options: GgufOptions | None = None) -> Path:
    options = options or GgufOptions()
    writer = gguf.GGUFWriter(file, options.architecture)
    _add_metadata(writer, model.config, options)
    if options.sentencepiece:
        _add_sentencepiece(writer)
    else:
        _add_byte_level(writer)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        weights = _permuted(name, tensor.numpy(), model.config)
        if weights.ndim == 1:
            writer.add_tensor(_gguf_name(name), weights)
            continue
        packed = gguf.quantize(weights, options.quantization)
        writer.add_tensor(_gguf_name(name), packed, raw_dtype=options.quantization)
    for name, weights in options.tensors.items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_metadata(writer: gguf.GGUFWriter, config: Any, options: GgufOptions) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_string("general.name", "tiny")
    if options.rope_scaling:
        kind, factor = options.rope_scaling
        writer.add_string("llama.rope.scaling.type", kind)
        writer.add_float32("llama.rope.scaling.factor", factor)
    for key, value in options.metadata.items():
        writer.add_uint32(key, value)


def _add_byte_level(writer: gguf.GGUFWriter) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokens = [str(tokenizer.id_to_token(i)) for i in range(tokenizer.get_vocab_size())]
    tokens += [f"filler{i}" for i in range(VOCAB_SIZE - len(tokens))]
    state = json.loads(tokenizer.to_str())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL_TOKENS else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in state["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_sentencepiece(writer: gguf.GGUFWriter) -> None:
    """Byte fallback and a begin-of-sequence token, as Llama 2 has them."""
    pieces = ["▁", *"helowrdabcitn", "▁h", "el", "lo", "▁hel", "▁hello", "▁w", "or", "▁wor"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    tokens += [f"▁filler{i}" for i in range(VOCAB_SIZE - len(tokens))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (VOCAB_SIZE - 259)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(VOCAB_SIZE)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _gguf_name(name: str) -> str:
    module, kind = name.rsplit(".", 1)
    if module.startswith("model.layers."):
        layer, part = module.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{_NAMES[part]}.{kind}"
    return f"{_NAMES[module]}.{kind}"


def _permuted(name: str, weights: npt.NDArray[np.float32], config: Any) -> npt.NDArray[np.float32]:
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    num_heads = heads.get(name.split(".")[-2])
    if num_heads is None:
        return weights
    halves = weights.reshape(num_heads, 2, weights.shape[0] // num_heads // 2, *weights.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weights.shape))


def convert(file: Path, folder: Path) -> Path:
    """Converts a .gguf file into a folder that it makes."""
    folder.mkdir()
    convert_gguf(file, folder, lambda done, total: None)
    return folder
