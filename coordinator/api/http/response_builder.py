"""The JSON of responses that chat and completions share: the envelope, chunks and usage."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from coordinator.api.http.request_parser import Delivery
from coordinator.output.output_stream import OutputStream
from coordinator.tokenization.model_info import ServedModel
from runtime.protocol.inference_types import (
    Finish,
    GenerationRequest,
    PromptToken,
    Token,
    Update,
    Usage,
)

JSON = dict[str, Any]

# Log-probabilities that are encoded on the event loop at once, in about 10 ms.
INLINE_LOGPROBS: Final = 2_048


@dataclass(slots=True)
class ChoiceAccumulator:
    """The output of one choice so far."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    prompt_tokens: list[PromptToken] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, update: Update) -> None:
        """Appends the new output."""
        self.text += update.text
        self.tokens += update.tokens
        self.prompt_tokens += update.prompt_tokens
        self.finish = update.finish


class ResponseBuilder(Protocol):
    """The JSON of choices at one route."""

    @property
    def name(self) -> str:
        """`object` of a whole response."""

    @property
    def chunk_name(self) -> str:
        """`object` of a stream's event."""

    @property
    def id_prefix(self) -> str:
        """The prefix of response ids."""

    @property
    def model_name(self) -> str:
        """The served model's name."""

    def openings(self, index: int) -> Iterator[JSON]:
        """The events that open the stream of choice `index`."""

    def chunks(self, index: int, update: Update) -> Iterator[JSON]:
        """The events of one update of choice `index`."""

    def choice(self, index: int, answer: ChoiceAccumulator) -> JSON:
        """Choice `index` of a whole response."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A parsed request body: the generation and how to send the response."""

    request: GenerationRequest
    delivery: Delivery
    make_builder: Callable[[ServedModel], ResponseBuilder]
    # Request field -> its name at this API, for errors; fields that are not listed keep their name.
    field_names: Mapping[str, str]


class ResponseEnvelope:
    """The JSON around the choices of one response."""

    def __init__(self, call: ParsedCall, builder: ResponseBuilder, output: OutputStream) -> None:
        self.call = call
        self.builder = builder
        self.num_answers = output.num_answers
        self._num_choices = output.num_choices
        self._prompt_lengths = output.prompt_lengths
        self._created = int(time.time())

    async def whole(self, output: OutputStream) -> bytes:
        """The whole response as JSON, once all choices are complete."""
        answers = [ChoiceAccumulator() for _ in range(self.num_answers)]
        num_logprobs = 0
        async for update in output:
            answers[self.number(update)].add(update)
            num_logprobs += count_logprobs((*update.prompt_tokens, *update.tokens))
        if num_logprobs <= INLINE_LOGPROBS:
            return encode(self._body(answers))
        return await asyncio.to_thread(lambda: _encode_in_turns(self._body(answers)))

    def _body(self, answers: list[ChoiceAccumulator]) -> JSON:
        choices = [self.builder.choice(index, answer) for index, answer in enumerate(answers)]
        usages = [answer.finish.usage for answer in answers if answer.finish is not None]
        return self._wrap(self.builder.name, choices) | {
            "usage": usage_body(usages, self._num_choices)
        }

    def number(self, update: Update) -> int:
        """The choice's `index` in the response: the first prompt's choices, then the second's."""
        return update.index * self._num_choices + update.choice

    def chunk(self, choice: JSON, num_tokens: int) -> JSON:
        """One event of a stream.

        With `include_usage` its `usage` is null; with `continuous_usage_stats` it is the choice's
        usage so far, with `num_tokens` generated tokens.
        """
        body = self._wrap(self.builder.chunk_name, [choice])
        if self.call.delivery.continuous_usage:
            prompt_length = self._prompt_lengths[choice["index"] // self._num_choices]
            return body | {"usage": count_body(prompt_length, num_tokens)}
        return body | {"usage": None} if self.call.delivery.include_usage else body

    def usage_chunk(self, usages: list[Usage]) -> JSON:
        """The last event of a stream with `include_usage`; it has no choices."""
        return self._wrap(self.builder.chunk_name, []) | {
            "usage": usage_body(usages, self._num_choices)
        }

    def _wrap(self, name: str, choices: list[JSON]) -> JSON:
        return {
            "id": self.builder.id_prefix + self.call.request.request_id,
            "object": name,
            "created": self._created,
            "model": self.builder.model_name,
            "choices": choices,
        }


def usage_body(usages: list[Usage], num_choices: int) -> JSON:
    """The sum of the choices' `usages`, which are in the order of the choices.

    Each prompt counts once, with the cached tokens of its first choice.
    """
    firsts = usages[::num_choices]
    counts = count_body(
        sum(usage.prompt_tokens for usage in firsts),
        sum(usage.completion_tokens for usage in usages),
    )
    cached_tokens = sum(usage.cached_prompt_tokens for usage in firsts)
    return counts | {"prompt_tokens_details": {"cached_tokens": cached_tokens}}


def count_body(prompt_tokens: int, completion_tokens: int) -> JSON:
    """`usage` in OpenAI's shape."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def finish_name(finish: Finish | None) -> str | None:
    """OpenAI's `finish_reason`, which has the same values."""
    return None if finish is None else finish.reason.value


def count_logprobs(tokens: Sequence[Token | PromptToken]) -> int:
    """Log-probabilities of the tokens and of their alternatives."""
    return sum(1 + len(token.top_logprobs) for token in tokens)


def encode(body: JSON) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _encode_in_turns(body: JSON) -> bytes:
    """Like `encode`, but in pure Python, which lets the event loop run in between."""
    encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
    return "".join(encoder.iterencode(body)).encode()
