"""The types of a generation: what a client requests and the updates that the server returns.

The APIs, the coordinator and the Python client share them. They mirror `protos/inference.proto`,
`inference_codec.py` converts between both. Nothing here validates.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation; `role` is `system`, `user` or `assistant`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, rendered by the served model's chat template.

    `add_generation_prompt` appends the start of a new assistant turn; None means: unless
    `continue_final_message` is set, with which the answer continues the last message.
    """

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @property
    def opens_answer(self) -> bool:
        """Whether the template starts a new assistant turn."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt that is tokenized already."""

    ids: tuple[int, ...]


Prompt = str | Chat | TokenIds
"""A `str` is text that the model continues as it is, without a chat template."""


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
JSON_OBJECT: Final = JsonSchema('{"type": "object"}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters; `temperature` 0 is greedy, `top_k` 0 keeps all tokens.

    The server chooses a seed where `seed` is None. `num_prompt_logprobs`, also 0, requests the
    log-probabilities of the prompt's tokens and this number of alternatives at each position.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """The lowest `priority` is served first; targets in seconds, None for the server's own.

    Only requests of one `cache_salt` share cached prompts.
    """

    priority: int = 0
    ttft_target_seconds: float | None = None
    tpot_target_seconds: float | None = None
    cache_salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Prompts and how to continue them; `max_tokens` None is as many as the context holds.

    `num_choices` answers are generated for each prompt. A text in `stop` ends an answer and is
    left out of it unless `include_stop` is set. With a `structured_output` every answer satisfies
    it, unless `max_tokens` ends the answer before.
    """

    prompts: tuple[Prompt, ...]
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    num_choices: int = 1
    min_tokens: int = 0
    structured_output: StructuredOutput | None = None
    scheduling: Scheduling = Scheduling()
    model: str = ""
    request_id: str = ""


class FinishReason(StrEnum):
    """Why an answer ended: a stop token or stop text, or the token limit."""

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
    """Tokens of the prompt and of one answer.

    `cached_prompt_tokens` of the prompt's were in the prefix cache.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds from the request's arrival to its first step, its first token and its last token."""

    queue_seconds: float
    first_token_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of one answer."""

    reason: FinishReason
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class Update:
    """New output of one answer: number `choice` of the prompt at `index`.

    `seed` comes with an answer's first update, `finish` with its last. `prompt_tokens`, where they
    are requested, come in order and before all generated tokens.
    """

    request_id: str
    index: int
    text: str
    tokens: tuple[Token, ...]
    finish: Finish | None = None
    seed: int | None = None
    choice: int = 0
    prompt_tokens: tuple[PromptToken, ...] = ()

    @property
    def finish_reason(self) -> FinishReason | None:
        """`finish.reason`."""
        return None if self.finish is None else self.finish.reason

    @property
    def usage(self) -> Usage | None:
        """`finish.usage`."""
        return None if self.finish is None else self.finish.usage

    @property
    def timings(self) -> Timings | None:
        """`finish.timings`."""
        return None if self.finish is None else self.finish.timings


@dataclass(frozen=True, slots=True)
class Model:
    """A served model; `max_model_len` is the longest prompt and answer together, in tokens."""

    name: str
    max_model_len: int
