"""Owns what a request may ask for: each rule refuses one thing with one clear error.

Pure functions; what depends on the prompt's tokens is checked in `admission.py` after tokenization.
"""

import math
from typing import NoReturn

from coordinator.requests import (
    ChatPrompt,
    GenerationRequest,
    Prompt,
    SamplingOptions,
    TokenPrompt,
)
from runtime.errors import (
    EmptyPromptError,
    InvalidRequestError,
    TokenOutOfVocabularyError,
    UnknownModelError,
)

MAX_REQUEST_ID_LENGTH = 128
MAX_SEED = 2**64 - 1
# Log-probabilities that one request may cause in all: bounds what a slow client can pile up.
MAX_LOGPROBS_PER_REQUEST = 1 << 22


def check_request(
    request: GenerationRequest, served_model: str, vocab_size: int, max_prompts: int
) -> None:
    """Raises the first error found; `max_prompts` is what the waiting line could ever hold."""
    if request.model and request.model != served_model:
        raise UnknownModelError(model=request.model, served=served_model)
    _check_request_id(request.request_id)
    if not request.prompts:
        _refuse("prompts", "is empty; send at least one prompt")
    if len(request.prompts) > max_prompts:
        problem = f"{len(request.prompts)} prompts in one request, at most {max_prompts} are taken"
        _refuse("prompts", problem)
    for index, prompt in enumerate(request.prompts):
        _check_prompt(prompt, index, vocab_size)
    check_sampling(request.sampling, vocab_size)
    if request.max_tokens is not None and request.max_tokens < 0:
        _refuse("max_tokens", "must not be negative")
    for token_id in request.stop_token_ids:
        _check_token(token_id, vocab_size)


def check_sampling(sampling: SamplingOptions, vocab_size: int) -> None:
    """Every sampling parameter alone; greedy is compatible with any cut."""
    temperature = sampling.temperature
    if not (math.isfinite(temperature) and temperature >= 0):
        _refuse("temperature", f"is {temperature:g}; must be finite and at least 0")
    if not 0 < sampling.top_p <= 1:
        _refuse("top_p", f"is {sampling.top_p:g}; must be above 0 and at most 1")
    if not 0 <= sampling.min_p <= 1:
        _refuse("min_p", f"is {sampling.min_p:g}; must be between 0 and 1")
    if sampling.top_k < 0:
        _refuse("top_k", f"is {sampling.top_k}; must be 0 (all tokens) or more")
    if sampling.seed is not None and not 0 <= sampling.seed <= MAX_SEED:
        _refuse("seed", f"is {sampling.seed}; must fit 64 bits without a sign")
    if not 0 <= sampling.num_logprobs <= vocab_size:
        problem = f"is {sampling.num_logprobs}; the vocabulary has {vocab_size} tokens"
        _refuse("num_logprobs", problem)


def check_num_logprobs(num_logprobs: int, num_tokens: int) -> None:
    """`num_tokens` is the most that all prompts of the request may generate together."""
    if num_logprobs * num_tokens > MAX_LOGPROBS_PER_REQUEST:
        most = MAX_LOGPROBS_PER_REQUEST // num_tokens
        problem = f"is {num_logprobs} for up to {num_tokens} tokens; lower max_tokens or ask for"
        _refuse("num_logprobs", f"{problem} at most {most}")


def _check_request_id(request_id: str) -> None:
    if len(request_id) > MAX_REQUEST_ID_LENGTH or not request_id.isprintable():
        problem = f"must be at most {MAX_REQUEST_ID_LENGTH} printable characters"
        _refuse("request_id", problem)


def _check_prompt(prompt: Prompt, index: int, vocab_size: int) -> None:
    if prompt is None or (isinstance(prompt, ChatPrompt) and not prompt.messages):
        raise EmptyPromptError(index=index)
    if isinstance(prompt, TokenPrompt):
        for token_id in prompt.token_ids:
            _check_token(token_id, vocab_size)


def _check_token(token_id: int, vocab_size: int) -> None:
    if not 0 <= token_id < vocab_size:
        raise TokenOutOfVocabularyError(token_id=token_id, vocab_size=vocab_size)


def _refuse(field: str, problem: str) -> NoReturn:
    raise InvalidRequestError(field=field, problem=problem)
