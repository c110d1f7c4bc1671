"""Owns what a client says and hears of one generation; it never touches a connection.

The classes mirror `protos/inference.proto` and are the only form in which the rest of the package
and its users see requests and answers.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from protos import inference_pb2


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation; `role` is `system`, `user` or `assistant`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, rendered by the served model's chat template."""

    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt that is tokenized already."""

    ids: tuple[int, ...]


Prompt = str | Chat | TokenIds
"""A `str` is text that goes to the model as it is, without a chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn; `temperature` 0 is greedy, `top_k` 0 is all, `seed` None is any."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Prompts and how to go on from them; `max_tokens` None is as many as the context holds.

    `stop` are texts that end an answer; they are left out of it unless `include_stop` is set.
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
class Usage:
    """How many tokens a prompt had and how many were generated."""

    prompt_tokens: int
    completion_tokens: int


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


@dataclass(frozen=True, slots=True)
class Model:
    """A served model; `max_model_len` is the longest prompt and answer together, in tokens."""

    name: str
    max_model_len: int


def request_to_proto(request: GenerationRequest) -> inference_pb2.InferRequest:
    """The message that asks for `request`; ValueError if a number does not fit its field."""
    sampling = request.sampling
    return inference_pb2.InferRequest(
        request_id=request.request_id,
        model=request.model,
        prompts=[prompt_to_proto(prompt) for prompt in request.prompts],
        sampling=inference_pb2.SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=sampling.seed,
            num_logprobs=sampling.num_logprobs,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=[
                inference_pb2.LogitBias(token_id=token_id, bias=bias)
                for token_id, bias in sampling.logit_bias
            ],
        ),
        max_tokens=request.max_tokens,
        ignore_eos=request.ignore_eos,
        stop_token_ids=request.stop_token_ids,
        stop=request.stop,
        include_stop=request.include_stop,
        num_choices=request.num_choices,
        min_tokens=request.min_tokens,
    )


def models_from_proto(message: inference_pb2.ListModelsResponse) -> tuple[Model, ...]:
    """The models of one answer."""
    return tuple(Model(model.name, model.max_model_len) for model in message.models)


def update_from_proto(message: inference_pb2.InferResponse) -> Update:
    """One response as an `Update`."""
    timings = message.timings
    return Update(
        request_id=message.request_id,
        index=message.index,
        text=message.text,
        tokens=tuple(_token_from_proto(token) for token in message.tokens),
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
        usage=Usage(message.usage.prompt_tokens, message.usage.completion_tokens)
        if message.HasField("usage")
        else None,
        timings=Timings(timings.queue_seconds, timings.first_token_seconds, timings.total_seconds)
        if message.HasField("timings")
        else None,
        seed=message.seed if message.HasField("seed") else None,
        choice=message.choice,
    )


_FINISH_REASONS = {
    inference_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    inference_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}


def prompt_to_proto(prompt: Prompt) -> inference_pb2.Prompt:
    """One prompt as a message."""
    match prompt:
        case str():
            return inference_pb2.Prompt(text=prompt)
        case Chat(messages):
            turns = [
                inference_pb2.ChatMessage(role=message.role, content=message.content)
                for message in messages
            ]
            return inference_pb2.Prompt(chat=inference_pb2.Chat(messages=turns))
        case TokenIds(ids):
            return inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(ids=ids))


def _token_from_proto(token: inference_pb2.Token) -> Token:
    top = tuple((entry.id, entry.logprob) for entry in token.top_logprobs)
    return Token(token.id, token.logprob, top)
