"""Owns what a client says and hears of one generation; it never touches a connection.

The classes mirror `protos/inference.proto` and are the only form in which the rest of the package
and its users see requests and answers.
"""

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation; `role` is `system`, `user` or `assistant`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, rendered by the served model's chat template.

    The answer is a new turn (`add_generation_prompt` None: unless the last message is continued),
    or goes on where the last message stops.
    """

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt that is tokenized already."""

    ids: tuple[int, ...]


Prompt = str | Chat | TokenIds
"""A `str` is text that goes to the model as it is, without a chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn; `temperature` 0 is greedy, `top_k` 0 is all, `seed` None is any.

    With `num_prompt_logprobs`, 0 too, the prompt's tokens are told with their log-probabilities.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    num_logprobs: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    num_prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON document, written without spaces, that `schema` (JSON itself) accepts."""

    schema: str


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that `pattern` matches from end to end, in the syntax of Rust's regex crate."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these texts."""

    texts: tuple[str, ...]


StructuredOutput = JsonSchema | Regex | Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """When to serve: the lowest `priority` first; targets in seconds, None for the server's own.

    Only requests of one `cache_salt` share cached prompts.
    """

    priority: int = 0
    ttft_target_seconds: float | None = None
    tpot_target_seconds: float | None = None
    cache_salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Prompts and how to go on from them; `max_tokens` None is as many as the context holds.

    `stop` are texts that end an answer; they are left out of it unless `include_stop` is set.
    With a `structured_output` every answer is one, unless `max_tokens` cuts it short.
    """

    prompts: tuple[Prompt, ...]
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    num_choices: int = 1
    min_tokens: int = 0
    structured_output: StructuredOutput | None = None
    scheduling: Scheduling = field(default_factory=Scheduling)
    model: str = ""
    request_id: str = ""


class FinishReason(StrEnum):
    """Why a prompt's generation ended: a stop token, or the number of tokens."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; `top_logprobs` holds (id, log-probability), most likely first."""

    id: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A token of the prompt, which was not generated; the first one has no log-probability."""

    id: int
    logprob: float | None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """How many tokens a prompt had and how many were generated.

    `cached_prompt_tokens` of the prompt's were in the prefix cache.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds since the request's arrival: first step, first token, last token."""

    queue_seconds: float
    first_token_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class Update:
    """News of one answer: `choice` counts those of a prompt, `index` says which prompt.

    `usage` and `timings` come with `finish_reason`, on its last update.
    """

    request_id: str
    index: int
    text: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason | None
    usage: Usage | None
    timings: Timings | None
    seed: int | None
    choice: int = 0
    prompt_tokens: tuple[PromptToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """A served model; `max_model_len` is the longest prompt and answer together, in tokens."""

    name: str
    max_model_len: int
