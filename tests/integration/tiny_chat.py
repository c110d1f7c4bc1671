"""A tiny Llama with a tokenizer, whose greedy answer to one prompt stops early, and its oracle."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast

from stagemesh import Update
from tests.tiny_models import TinyModel, make_tiny_llama
from tests.tiny_tokenizer import write_tiny_tokenizer

TOLERANCE = 1e-4
MODEL_NAME = "tiny-chat"
NUM_LAYERS = 5
_EOS_PROMPT = tuple(range(40, 60))


@dataclass(frozen=True, slots=True)
class TinyChat:
    """The model, its tokenizer, and a prompt that leads to its end-of-sequence token."""

    model: TinyModel
    tokenizer: PreTrainedTokenizerFast
    eos_prompt: tuple[int, ...]
    eos_token_id: int
    # Tokens that greedy decoding generates after `eos_prompt`, the end-of-sequence token included.
    num_tokens_to_eos: int

    def greedy(self, prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
        """What Transformers generates, past any end-of-sequence token."""
        return _greedy(self.model, prompt, num_tokens)

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """The text of generated tokens, as Transformers decodes it."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))


def make_tiny_chat(folder: Path) -> TinyChat:
    """Writes the model into `folder`; its end-of-sequence token is one that it will generate."""
    model = make_tiny_llama(folder, "llama3_gqa")
    assert model.num_layers == NUM_LAYERS
    tokenizer = write_tiny_tokenizer(folder)
    answer = _greedy(model, _EOS_PROMPT, 12)
    eos_token_id = answer[5]
    GenerationConfig(bos_token_id=1, eos_token_id=[2, eos_token_id]).save_pretrained(folder)
    return TinyChat(model, tokenizer, _EOS_PROMPT, eos_token_id, answer.index(eos_token_id) + 1)


def assert_matches_reference(
    model: TinyModel, prompt: tuple[int, ...], updates: list[Update]
) -> None:
    """Full-vocabulary log-probabilities within tolerance, and greedy tokens the same.

    A token is excused only where the reference's two likeliest are closer than the tolerance.
    """
    tokens = [token for update in updates for token in update.tokens]
    generated = tuple(token.id for token in tokens)
    expected_rows = model.logprobs((*prompt, *generated[:-1]))[len(prompt) - 1 :]
    bound = TOLERANCE * float(expected_rows.abs().max())
    for token, expected in zip(tokens, expected_rows, strict=True):
        ids, logprobs = zip(*token.top_logprobs, strict=True)
        assert sorted(ids) == list(range(len(expected)))
        actual = torch.empty_like(expected)
        actual[list(ids)] = torch.tensor(logprobs)
        assert float((actual - expected).abs().max()) <= bound
        best, second = expected.topk(2).values
        assert token.id == int(expected.argmax()) or float(best - second) <= bound


def assert_greedy(model: TinyModel, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> None:
    """Each token is the likeliest after those before it, but where the reference nearly ties."""
    expected_rows = model.logprobs((*prompt, *tokens[:-1]))[len(prompt) - 1 :]
    bound = TOLERANCE * float(expected_rows.abs().max())
    likeliest = expected_rows.max(dim=-1).values
    drawn = expected_rows.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert float((likeliest - drawn).max()) <= bound


def _greedy(model: TinyModel, prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    tokens: tuple[int, ...] = ()
    for _ in range(num_tokens):
        tokens += (int(model.logprobs((*prompt, *tokens))[-1].argmax()),)
    return tokens
