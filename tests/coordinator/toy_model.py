"""A model that needs no torch: a folder with config, tokenizer and tiny weights, and its function.

The next token after a history is a pure function of the history, so a test can calculate what any
undisturbed run must answer.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

VOCAB_SIZE = 97
EOS_ID = 96
NUM_LAYERS = 4
MAX_LEN = 512

_CHAT_TEMPLATE = "{% for m in messages %}w{{ m.content|length }} {% endfor %}w1"


def make_toy_model(folder: Path) -> Path:
    """Writes a folder in Hugging Face layout; words `w0` to `w96` are the tokens 0 to 96."""
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": NUM_LAYERS,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 32,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": MAX_LEN,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": EOS_ID,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"model.norm.weight": np.ones(16, np.float32)}, folder / "model.safetensors")
    words = {f"w{token_id}": token_id for token_id in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": _CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def toy_logprobs(history: Sequence[int]) -> list[float]:
    """Log-probabilities of the token that follows `history`; end of sequence is most unlikely."""
    state = 7
    for token_id in history:
        state = (state * 31 + token_id + 1) % 1_000_003
    logits = [((state * (v + 3) + v * v) % 211) / 20 for v in range(VOCAB_SIZE)]
    logits[EOS_ID] = -50.0
    log_sum = math.log(sum(math.exp(logit) for logit in logits))
    return [logit - log_sum for logit in logits]


def toy_top(history: Sequence[int], num_logprobs: int) -> tuple[list[int], list[float]]:
    """The most likely tokens after `history`, most likely first."""
    logprobs = toy_logprobs(history)
    ids = sorted(range(VOCAB_SIZE), key=lambda v: (-logprobs[v], v))[:num_logprobs]
    return ids, [logprobs[v] for v in ids]


def toy_answer(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What an undisturbed greedy run generates."""
    history = list(prompt)
    for _ in range(num_tokens):
        history.append(toy_top(history, 1)[0][0])
    return history[len(prompt) :]


def words(*token_ids: int) -> str:
    """The text of a prompt."""
    return " ".join(f"w{token_id}" for token_id in token_ids)


def answer_words(*token_ids: int) -> str:
    """The text behind a prompt: a space stands in front of each word."""
    return "".join(f" w{token_id}" for token_id in token_ids)
