"""Owns the APIs' vocabulary: what a client asks for and what it is told, free of any wire format.

Every API translates into these classes and back; nothing here decides or validates.
"""

from dataclasses import dataclass

from coordinator.tokenization.tokenizer import ChatMessage
from runtime.protocol.step import SampledToken
from scheduler import FinishReason


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text, continued as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, put through the model's chat template.

    It ends with the beginning of an answer (None: unless the last message is continued), or open
    behind the last message, or as the template leaves it.
    """

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @property
    def opens_answer(self) -> bool:
        """Whether the template is asked to begin an answer."""
        asked = self.add_generation_prompt
        return not self.continue_final_message if asked is None else asked


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, taken as they are."""

    token_ids: tuple[int, ...]


# None: the client sent a prompt without any input.
Prompt = TextPrompt | ChatPrompt | TokenPrompt | None


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON document that `schema`, JSON itself, accepts."""

    schema: str


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that `pattern` matches from end to end."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these texts."""

    texts: tuple[str, ...]


StructuredOutput = JsonSchema | Regex | Choice
JSON_OBJECT = JsonSchema('{"type": "object"}')


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How to draw, as the client wrote it; `seed` None lets the server choose one."""

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
    # None: the prompt's tokens are not told.
    num_prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class SchedulingOptions:
    """When to serve; the lowest `priority` first, targets in seconds, None for the server's own.

    `timeout_seconds` is how long the client waits for the whole answer, None for ever.
    """

    priority: int = 0
    ttft_target_seconds: float | None = None
    tpot_target_seconds: float | None = None
    cache_salt: str = ""
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One call at an API; `max_tokens` None means as many as the context holds.

    `num_choices` answers are generated for each prompt; each has to be a `structured_output`.
    `api` is `grpc` or `http`.
    """

    prompts: tuple[Prompt, ...]
    request_id: str = ""
    model: str = ""
    sampling: SamplingOptions = SamplingOptions()
    max_tokens: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    num_choices: int = 1
    min_tokens: int = 0
    structured_output: StructuredOutput | None = None
    scheduling: SchedulingOptions = SchedulingOptions()
    api: str = "grpc"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and generated for one choice; of those read, some were in the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds from arrival to: the first step with the prompt, the first token, the end."""

    queue_seconds: float
    first_token_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class Finish:
    """How one choice's generation ended."""

    reason: FinishReason
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A token of the prompt and its log-probability; the first one has none.

    `top_ids` and `top_logprobs` are the likeliest at its place, most likely first.
    """

    token_id: int
    logprob: float | None
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """What became certain for one choice since its last update; `seed` comes with the first.

    `index` is the prompt's, `choice` counts its answers. `prompt_tokens` come before all others,
    in order, where they are wanted.
    """

    index: int
    text: str
    tokens: tuple[SampledToken, ...]
    finish: Finish | None = None
    seed: int | None = None
    choice: int = 0
    prompt_tokens: tuple[PromptToken, ...] = ()
