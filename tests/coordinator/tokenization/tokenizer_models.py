"""Folders with tokenizers to test against Transformers: the bundled model's and a Llama 2 kind."""

from pathlib import Path
from typing import Any

from transformers import LlamaTokenizer

from coordinator.tokenization.tokenizer import Tokenizer
from runtime.checkpoints.model_store import resolve_model
from runtime.model_config.families import FAMILIES
from runtime.model_config.layer_config import LayerConfig
from runtime.model_config.model_config import ModelConfig, load_model_config
from runtime.model_config.rope_config import RopeConfig

PIECES = ["▁", *"abcdefghijklmnopqrstuvwxyz", "▁h", "el", "lo", "▁hel", "▁hello", "ll", "世", "�"]
NUM_BYTE_FALLBACK = 259 + len(PIECES)
SMOLLM2_VOCAB_SIZE = 49_152
REPLACEMENT = "\ufffd"


def make_config(vocab_size: int) -> ModelConfig:
    """A configuration of which the tokenizer needs the vocabulary only."""
    return ModelConfig(
        family=FAMILIES[0],
        hidden_size=8,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        intermediate_size=8,
        vocab_size=vocab_size,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        layers=(LayerConfig(RopeConfig(10_000.0, None)),),
        experts=None,
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        hidden_act="silu",
        attention_scale=8**-0.5,
        attention_soft_cap=None,
        logit_soft_cap=None,
        embedding_scale=1.0,
        residual_scale=1.0,
        logit_scale=1.0,
        eos_token_ids=(2,),
        bos_token_id=1,
        torch_dtype="float32",
    )


def save_byte_fallback(folder: Path, **changes: Any) -> Path:
    """Raw bytes for what the vocabulary lacks, and a begin-of-sequence token, as Llama 2 has."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    merges = [("▁", "h"), ("e", "l"), ("l", "o"), ("▁h", "el"), ("▁hel", "lo"), ("l", "l")]
    tokenizer = LlamaTokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=merges,
        add_bos_token=True,
        **changes,
    )
    tokenizer.save_pretrained(folder)
    return folder


def load_bundled() -> Tokenizer:
    folder = resolve_model("smollm2")
    return Tokenizer.load(folder, load_model_config(folder))


def load_byte_fallback(folder: Path, **changes: Any) -> Tokenizer:
    return Tokenizer.load(save_byte_fallback(folder, **changes), make_config(1024))


def byte_ids(data: bytes) -> list[int]:
    """Raw byte tokens of the byte-fallback tokenizer."""
    return [3 + byte for byte in data]


def pieces(*names: str) -> list[int]:
    """Tokens of the byte-fallback tokenizer by their text."""
    return [259 + PIECES.index(name) for name in names]
