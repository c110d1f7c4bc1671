"""Validates requests: pure functions with one error for each rule, which names the field.

`check_request` runs before tokenization. Admission calls the checks that need the number of tokens
after it.
"""

from collections.abc import Sequence
from typing import NoReturn

from runtime.errors import (
    EmptyPromptError,
    InvalidRequestError,
    TokenOutOfVocabularyError,
    UnknownModelError,
)
from runtime.protocol.inference_types import (
    Chat,
    GenerationRequest,
    Prompt,
    Sampling,
    Scheduling,
    TokenIds,
)

MAX_REQUEST_ID_LENGTH = 128
MAX_SEED = 2**64 - 1
# Sampling parameters are sent to the last stage as float32.
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
MAX_MESSAGES_PER_REQUEST = 1 << 14
MAX_TOKEN_IDS_PER_REQUEST = 1 << 21
MAX_STOP_TOKEN_IDS = 1 << 14
# Each character of an answer is compared with each stop text.
MAX_STOPS = 32
MAX_STOP_LENGTH = 1024
MAX_PENALTY = 2.0
MAX_REPETITION_PENALTY = 10.0
MAX_BIAS = 100.0
MAX_BIASES = 1024
MAX_PRIORITY = 100
MAX_TARGET_SECONDS = 3600.0
MAX_CACHE_SALT_LENGTH = 256
# Log-probabilities of one request: bounds the unread output of a slow client.
MAX_LOGPROBS_PER_REQUEST = 1 << 22
# At each position of a prompt; all positions may be in one step.
MAX_PROMPT_LOGPROBS = 20


def check_request(
    request: GenerationRequest, served_model: str, vocab_size: int, max_prompts: int
) -> None:
    """Raises the first error found; `max_prompts` is the capacity of the waiting queue."""
    check_model(request.model, served_model)
    check_request_id(request.request_id)
    if not request.prompts:
        _refuse("prompts", "is empty; send at least one prompt")
    chats = [prompt for prompt in request.prompts if isinstance(prompt, Chat)]
    tokens = [prompt for prompt in request.prompts if isinstance(prompt, TokenIds)]
    check_counts(
        num_prompts=len(request.prompts),
        max_prompts=max_prompts,
        num_messages=sum(len(chat.messages) for chat in chats),
        num_token_ids=sum(len(prompt.ids) for prompt in tokens),
        num_stop_token_ids=len(request.stop_token_ids),
    )
    _check_num_choices(request, max_prompts)
    for index, prompt in enumerate(request.prompts):
        _check_prompt(prompt, index, vocab_size)
    check_sampling(request.sampling, vocab_size)
    check_scheduling(request.scheduling)
    if request.max_tokens is not None and request.max_tokens < 0:
        _refuse("max_tokens", "must not be negative")
    if request.min_tokens < 0:
        _refuse("min_tokens", "must not be negative")
    check_token_ids(request.stop_token_ids, vocab_size)
    _check_stop(request)
    _check_structured_output(request)


def check_counts(
    *,
    num_prompts: int,
    max_prompts: int,
    num_messages: int,
    num_token_ids: int,
    num_stop_token_ids: int,
) -> None:
    """Bounds a request's sizes; the gRPC API calls it before converting a message, too."""
    counts = (
        ("prompts", num_prompts, max_prompts),
        ("messages", num_messages, MAX_MESSAGES_PER_REQUEST),
        ("token_ids", num_token_ids, MAX_TOKEN_IDS_PER_REQUEST),
        ("stop_token_ids", num_stop_token_ids, MAX_STOP_TOKEN_IDS),
    )
    for field, count, most in counts:
        if count > most:
            _refuse(field, f"{count} in one request; at most {most} are allowed")


def check_model(requested: str, served: str) -> None:
    """Raises `UnknownModelError` for another model than the served one; empty means any."""
    if requested and requested != served:
        raise UnknownModelError(model=requested[:MAX_REQUEST_ID_LENGTH], served=served)


def check_request_id(request_id: str) -> None:
    """A request id must fit headers, metadata and logs."""
    is_plain = request_id.isascii() and request_id.isprintable()
    if len(request_id) > MAX_REQUEST_ID_LENGTH or not is_plain:
        problem = f"must be at most {MAX_REQUEST_ID_LENGTH} printable ASCII characters"
        _refuse("request_id", problem)


def check_sampling(sampling: Sampling, vocab_size: int) -> None:
    """Checks each sampling parameter by itself; greedy sampling accepts any truncation."""
    temperature = sampling.temperature
    if not 0 <= temperature <= MAX_FLOAT32:
        _refuse("temperature", f"is {temperature:g}; must be finite and at least 0")
    if not 0 < sampling.top_p <= 1:
        _refuse("top_p", f"is {sampling.top_p:g}; must be above 0 and at most 1")
    if not 0 <= sampling.min_p <= 1:
        _refuse("min_p", f"is {sampling.min_p:g}; must be between 0 and 1")
    if sampling.top_k < 0:
        _refuse("top_k", f"is {sampling.top_k}; must be 0 (all tokens) or more")
    if sampling.seed is not None and not 0 <= sampling.seed <= MAX_SEED:
        _refuse("seed", f"is {sampling.seed}; must fit 64 bits without a sign")
    for name in ("presence_penalty", "frequency_penalty"):
        penalty = getattr(sampling, name)
        if not -MAX_PENALTY <= penalty <= MAX_PENALTY:
            _refuse(name, f"is {penalty:g}; must be from -{MAX_PENALTY:g} to {MAX_PENALTY:g}")
    if not 0 < sampling.repetition_penalty <= MAX_REPETITION_PENALTY:
        problem = f"must be above 0 and at most {MAX_REPETITION_PENALTY:g}"
        _refuse("repetition_penalty", f"is {sampling.repetition_penalty:g}; {problem}")
    _check_logit_bias(sampling.logit_bias, vocab_size)
    _check_logprobs(sampling, vocab_size)


def _check_logprobs(sampling: Sampling, vocab_size: int) -> None:
    if not 0 <= sampling.num_logprobs <= vocab_size:
        problem = f"is {sampling.num_logprobs}; the vocabulary has {vocab_size} tokens"
        _refuse("num_logprobs", problem)
    requested = sampling.num_prompt_logprobs
    most = min(MAX_PROMPT_LOGPROBS, vocab_size)
    if requested is not None and not 0 <= requested <= most:
        _refuse("num_prompt_logprobs", f"is {requested}; must be from 0 to {most}")


def check_scheduling(scheduling: Scheduling) -> None:
    """Checks each scheduling parameter by itself."""
    if not -MAX_PRIORITY <= scheduling.priority <= MAX_PRIORITY:
        problem = f"is {scheduling.priority}; must be from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        _refuse("priority", problem)
    for name in ("ttft_target_seconds", "tpot_target_seconds"):
        target = getattr(scheduling, name)
        if target is not None and not 0 < target <= MAX_TARGET_SECONDS:
            _refuse(name, f"is {target:g}; must be above 0 and at most {MAX_TARGET_SECONDS:g}")
    if len(scheduling.cache_salt) > MAX_CACHE_SALT_LENGTH:
        _refuse("cache_salt", f"must have at most {MAX_CACHE_SALT_LENGTH} characters")


def check_min_tokens(min_tokens: int, max_tokens: int) -> None:
    """`max_tokens` is the smallest limit of the request's prompts."""
    if min_tokens > max_tokens:
        _refuse("min_tokens", f"is {min_tokens}, but at most {max_tokens} tokens can be generated")


def check_num_logprobs(num_logprobs: int, num_tokens: int) -> None:
    """`num_tokens` is the largest number of tokens that the request may generate."""
    if num_logprobs * num_tokens > MAX_LOGPROBS_PER_REQUEST:
        most = MAX_LOGPROBS_PER_REQUEST // num_tokens
        problem = f"is {num_logprobs} for up to {num_tokens} tokens; lower max_tokens or ask for"
        _refuse("num_logprobs", f"{problem} at most {most}")


def check_num_prompt_logprobs(num_logprobs: int | None, num_tokens: int) -> None:
    """`num_tokens` is the number of tokens of all prompts of the request."""
    if num_logprobs is not None and (num_logprobs + 1) * num_tokens > MAX_LOGPROBS_PER_REQUEST:
        problem = f"is {num_logprobs} for prompts of {num_tokens} tokens; send fewer of them"
        _refuse("num_prompt_logprobs", problem)


def _check_num_choices(request: GenerationRequest, max_prompts: int) -> None:
    if request.num_choices < 1:
        _refuse("num_choices", "must be at least 1")
    num_answers = len(request.prompts) * request.num_choices
    if request.num_choices > 1 and request.sampling.num_prompt_logprobs is not None:
        _refuse("num_choices", "must be 1 where the prompt's log-probabilities are wanted")
    if num_answers > max_prompts:
        problem = f"{request.num_choices} for each prompt are {num_answers} answers"
        _refuse("num_choices", f"{problem}; at most {max_prompts} are allowed")


def _check_structured_output(request: GenerationRequest) -> None:
    """Checks other fields against a structured output; `grammar_compiler.py` checks the grammar."""
    for name in ("ignore_eos", "min_tokens"):
        if request.structured_output is not None and getattr(request, name):
            problem = "cannot be sent with a structured output, which ends where it is complete"
            _refuse(name, problem)


def _check_stop(request: GenerationRequest) -> None:
    if len(request.stop) > MAX_STOPS:
        _refuse("stop", f"{len(request.stop)} texts; at most {MAX_STOPS} are allowed")
    for stop in request.stop:
        if not 1 <= len(stop) <= MAX_STOP_LENGTH:
            problem = f"a text has {len(stop)} characters; must have 1 to {MAX_STOP_LENGTH}"
            _refuse("stop", problem)
    if request.include_stop and not request.stop:
        _refuse("include_stop", "requires stop")


def _check_logit_bias(logit_bias: tuple[tuple[int, float], ...], vocab_size: int) -> None:
    if len(logit_bias) > MAX_BIASES:
        _refuse("logit_bias", f"{len(logit_bias)} tokens; at most {MAX_BIASES} are allowed")
    token_ids = [token_id for token_id, _ in logit_bias]
    check_token_ids(token_ids, vocab_size)
    if len(set(token_ids)) < len(token_ids):
        _refuse("logit_bias", "names a token twice")
    for token_id, bias in logit_bias:
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            problem = f"of token {token_id} is {bias:g}; must be from -{MAX_BIAS:g} to {MAX_BIAS:g}"
            _refuse("logit_bias", problem)


def _check_prompt(prompt: Prompt, index: int, vocab_size: int) -> None:
    if isinstance(prompt, Chat):
        if not prompt.messages:
            raise EmptyPromptError(index=index)
        check_chat(prompt)
    if isinstance(prompt, TokenIds):
        if not prompt.ids:
            raise EmptyPromptError(index=index)
        check_token_ids(prompt.ids, vocab_size)


def check_chat(prompt: Chat) -> None:
    """Refuses a conversation that both continues its last message and starts a new one."""
    if prompt.continue_final_message and prompt.opens_answer:
        problem = "starts a new turn; leave it out to continue the last message"
        _refuse("add_generation_prompt", problem)


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises `TokenOutOfVocabularyError` for the smallest or largest id that the model lacks."""
    # Only the extremes: a Python loop over millions of ids would block the event loop.
    for token_id in (min(token_ids), max(token_ids)) if token_ids else ():
        if not 0 <= token_id < vocab_size:
            raise TokenOutOfVocabularyError(token_id=token_id, vocab_size=vocab_size)


def _refuse(field: str, problem: str) -> NoReturn:
    raise InvalidRequestError(field=field, problem=problem)
