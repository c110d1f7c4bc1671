"""Random-weight checkpoints made at test time, with their Transformers models as reference.

Norms and biases are random, too, so that an exchange of two is visible. Weights are larger than at
the start of training: attention is concentrated, and the top two logits are seldom close.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A checkpoint's folder and the Transformers model that wrote it."""

    folder: Path
    reference: Any
    num_layers: int
    vocab_size: int
    _logprobs: dict[tuple[int, ...], Tensor] = field(default_factory=dict, repr=False)

    def logprobs(self, token_ids: tuple[int, ...]) -> Tensor:
        """Transformers' log-probabilities after every token, [tokens, vocabulary], float32.

        Calculated once for each sequence of tokens, because many tests ask for the same.
        """
        known = self._logprobs.get(token_ids)
        if known is None:
            with torch.inference_mode():
                logits: Tensor = self.reference(torch.tensor([token_ids])).logits
            known = self._logprobs[token_ids] = logits[0].float().log_softmax(dim=-1)
        return known


@dataclass(frozen=True, slots=True)
class TinyLlama:
    """The parameters of a tiny model; `num_kv_heads` below `num_heads` is GQA."""

    num_layers: int = 4
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    is_tied: bool = False
    has_bias: bool = False
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default"})


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

TINY_LLAMAS = {
    "tied_gqa": TinyLlama(is_tied=True),
    "untied_mha_bias": TinyLlama(num_kv_heads=4, head_dim=24, has_bias=True),
    "llama3_gqa": TinyLlama(num_layers=5, num_heads=8, num_kv_heads=2, rope=LLAMA3_ROPE),
    "nine_of_three": TinyLlama(hidden_size=72, num_heads=9, num_kv_heads=3, is_tied=True),
    "linear_mqa": TinyLlama(num_kv_heads=1, rope={"rope_type": "linear", "factor": 2.5}),
}


def make_tiny_llama(folder: Path, name: str, seed: int = 0) -> TinyModel:
    """Writes the model of that name into `folder`."""
    tiny = TINY_LLAMAS[name]
    options = {
        "num_hidden_layers": tiny.num_layers,
        "hidden_size": tiny.hidden_size,
        "intermediate_size": 96,
        "num_attention_heads": tiny.num_heads,
        "num_key_value_heads": tiny.num_kv_heads,
        "head_dim": tiny.head_dim,
        "vocab_size": 320,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10_000.0, **tiny.rope},
        "tie_word_embeddings": tiny.is_tied,
        "attention_bias": tiny.has_bias,
        "mlp_bias": tiny.has_bias,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return save_tiny_model(folder, LlamaForCausalLM, options, seed)


def save_tiny_model(
    folder: Path, model_class: Any, options: dict[str, Any], seed: int = 0
) -> TinyModel:
    """Writes a model with random weights, norms and biases."""
    config = model_class.config_class(**options)
    torch.manual_seed(seed)
    model: Any = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return TinyModel(folder, model, config.num_hidden_layers, config.vocab_size)
