"""Buffers one request's output until its client reads it; it never blocks the engine.

A slow client's tokens are merged in place instead of queued as messages. What can pile up is
bounded by the most that the request may generate, which admission has checked.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

from runtime.errors import StagemeshError
from runtime.protocol.inference_types import Finish, PromptToken, Token, Update
from runtime.protocol.step import SampledToken, ScoredToken

# Log-probabilities in one update: making its message takes the event loop some 50 ms, at most.
MAX_LOGPROBS_PER_UPDATE = 1 << 16


_AnyToken = TypeVar("_AnyToken", SampledToken, PromptToken)


@dataclass(slots=True)
class _Pending:
    """The unread part of one choice's output; the text belongs to the tokens as a whole."""

    text: list[str] = field(default_factory=list)
    tokens: deque[SampledToken] = field(default_factory=deque)
    prompt_tokens: deque[PromptToken] = field(default_factory=deque)
    finish: Finish | None = None
    seed: int | None = None


class OutputStream:
    """The updates of one request, written by the engine and read by one API."""

    def __init__(
        self,
        seeds: tuple[int, ...],
        num_choices: int = 1,
        prompt_lengths: tuple[int, ...] = (),
        request_id: str = "",
    ) -> None:
        """One prompt per seed, in the order of their indices, each with `num_choices` choices.

        `prompt_lengths` are the prompts' token counts, for readers.

        Inside, choices are counted over all prompts: `number` is that of a prompt's first choice
        plus the choice.
        """
        self.num_choices = num_choices
        self._request_id = request_id
        self.prompt_lengths = prompt_lengths
        self._pending = [_Pending(seed=seed) for seed in seeds for _ in range(num_choices)]
        # Choices with something to read, in the order in which it arrived.
        self._unread: dict[int, None] = {}
        self._num_open = len(self._pending)
        self._error: StagemeshError | None = None
        self._changed = asyncio.Event()

    @property
    def num_answers(self) -> int:
        """Choices of all prompts, finished or not."""
        return len(self._pending)

    def push(self, number: int, text: str, token: SampledToken) -> None:
        """Adds one generated token of a choice and the text that it made certain."""
        pending = self._pending[number]
        pending.tokens.append(token)
        if text:
            pending.text.append(text)
        self._mark(number)

    def push_prompt(self, number: int, tokens: tuple[PromptToken, ...]) -> None:
        """Adds the next tokens of a choice's prompt; none comes after a generated one."""
        self._pending[number].prompt_tokens.extend(tokens)
        self._mark(number)

    def finish(self, number: int, text: str, finish: Finish) -> None:
        """Ends a choice; `text` is what was still held back."""
        pending = self._pending[number]
        if text:
            pending.text.append(text)
        pending.finish = finish
        self._num_open -= 1
        self._mark(number)

    def fail(self, error: StagemeshError) -> None:
        """Ends the whole request: the reader gets `error` after what it has not read yet."""
        self._error = self._error or error
        self._changed.set()

    def __aiter__(self) -> "OutputStream":
        return self

    async def __anext__(self) -> Update:
        """The next update, the end, or the request's error."""
        while not self._unread:
            if self._error is not None:
                raise self._error
            if self._num_open == 0:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._take(next(iter(self._unread)))

    def _mark(self, number: int) -> None:
        self._unread[number] = None
        self._changed.set()

    def _take(self, number: int) -> Update:
        """Removes one message's worth; the rest goes to the back of the queue."""
        del self._unread[number]
        pending = self._pending[number]
        prompt_tokens = _take_tokens(pending.prompt_tokens)
        tokens = () if pending.prompt_tokens else _take_tokens(pending.tokens)
        complete = not (pending.prompt_tokens or pending.tokens)
        text = "".join(pending.text) if complete else ""
        finish = pending.finish if complete else None
        index, choice = divmod(number, self.num_choices)
        update = Update(
            self._request_id,
            index,
            text,
            tuple(Token(token.token_id, token.logprob, top_pairs(token)) for token in tokens),
            finish,
            pending.seed,
            choice,
            prompt_tokens,
        )
        pending.seed = None
        if complete:
            pending.text.clear()
        else:
            self._unread[number] = None
        return update


def _take_tokens(tokens: deque[_AnyToken]) -> tuple[_AnyToken, ...]:
    taken: list[_AnyToken] = []
    num_logprobs = 0
    while tokens:
        num_logprobs += 1 + len(tokens[0].top_logprobs)
        if taken and num_logprobs > MAX_LOGPROBS_PER_UPDATE:
            break
        taken.append(tokens.popleft())
    return tuple(taken)


def top_pairs(token: SampledToken | ScoredToken) -> tuple[tuple[int, float], ...]:
    """(id, log-probability) of the most likely tokens, most likely first."""
    return tuple(zip(token.top_ids, token.top_logprobs, strict=True))
