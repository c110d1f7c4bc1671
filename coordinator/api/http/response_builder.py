"""Owns the shape of an answer that every generation shares; chat and completions fill it in."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from coordinator.api.http.request_parser import Delivery
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


@dataclass(slots=True)
class ChoiceAccumulator:
    """Everything that was generated for one choice."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    prompt_tokens: list[PromptToken] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, update: Update) -> None:
        """Takes in what is new."""
        self.text += update.text
        self.tokens += update.tokens
        self.prompt_tokens += update.prompt_tokens
        self.finish = update.finish


class ResponseBuilder(Protocol):
    """How one kind of call tells its answers."""

    @property
    def name(self) -> str:
        """`object` of a whole answer."""

    @property
    def chunk_name(self) -> str:
        """`object` of a piece of a stream."""

    @property
    def id_prefix(self) -> str:
        """What ids begin with."""

    @property
    def model_name(self) -> str:
        """Which model answers."""

    def openings(self, index: int) -> Iterator[JSON]:
        """The choices that begin the stream of choice `index`."""

    def chunks(self, index: int, update: Update) -> Iterator[JSON]:
        """The choices that tell one update of choice `index`."""

    def choice(self, index: int, answer: ChoiceAccumulator) -> JSON:
        """One whole choice."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A generation that was asked for, and how to tell it."""

    request: GenerationRequest
    delivery: Delivery
    make_form: Callable[[ServedModel], ResponseBuilder]
    # What the client calls fields of the request, for errors; the others have their own names.
    field_names: Mapping[str, str]


def usage_body(usages: list[Usage], num_choices: int) -> JSON:
    """The sum over all choices, in their order.

    A prompt counts once, and as cached counts what its first choice found.
    """
    firsts = usages[::num_choices]
    counts = count_body(
        sum(usage.prompt_tokens for usage in firsts),
        sum(usage.completion_tokens for usage in usages),
    )
    cached_tokens = sum(usage.cached_prompt_tokens for usage in firsts)
    return counts | {"prompt_tokens_details": {"cached_tokens": cached_tokens}}


def count_body(prompt_tokens: int, completion_tokens: int) -> JSON:
    """Tokens of a prompt and its answer."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def finish_name(finish: Finish | None) -> str | None:
    """OpenAI's word for why it ended; `stop` and `length` are the same as ours."""
    return None if finish is None else finish.reason.value
