"""Assembles complete answers from the streamed updates of a request."""

from collections.abc import Iterable
from dataclasses import dataclass

from runtime.protocol.inference_types import (
    FinishReason,
    PromptToken,
    Timings,
    Token,
    Update,
    Usage,
)


@dataclass(frozen=True, slots=True)
class Completion:
    """A complete answer: choice number `choice` of the prompt at `index`, both from 0."""

    index: int
    choice: int
    text: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason | None
    usage: Usage | None
    timings: Timings | None
    seed: int | None
    prompt_tokens: tuple[PromptToken, ...] = ()


def complete(updates: Iterable[Update]) -> tuple[Completion, ...]:
    """Returns the answers of one request, ordered by prompt and choice."""
    answers: dict[tuple[int, int], list[Update]] = {}
    for update in updates:
        answers.setdefault((update.index, update.choice), []).append(update)
    return tuple(_complete(answers[key]) for key in sorted(answers))


def _complete(updates: list[Update]) -> Completion:
    first, last = updates[0], updates[-1]
    return Completion(
        index=first.index,
        choice=first.choice,
        text="".join(update.text for update in updates),
        tokens=tuple(token for update in updates for token in update.tokens),
        finish_reason=last.finish_reason,
        usage=last.usage,
        timings=last.timings,
        seed=first.seed,
        prompt_tokens=tuple(token for update in updates for token in update.prompt_tokens),
    )
