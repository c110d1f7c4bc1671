"""Detokenizes streams: turns token ids into text as they arrive, whole characters only.

Keeps only the tail of a stream. The joined pieces equal the text that `Tokenizer.decode` of prompt
and answer together adds to the prompt's own text, also if tokens split a character, the prompt ends
inside a character, or the bytes are not valid UTF-8.
"""

from collections.abc import Sequence
from typing import Final

from coordinator.tokenization.tokenizer import Tokenizer

# Tokens kept of the stream, so that a push costs the same at any length. A character has at most
# four bytes, so a cut this far back cannot change the text after what was returned.
_KEPT_TOKENS: Final = 8

# Tokens of a prompt's end that are examined: its last run of raw bytes is rarely longer.
_MAX_PROMPT_TOKENS: Final = 4_096

_INCOMPLETE: Final = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """The text of one sequence, token by token.

    Two kinds of text are uncertain and held back: a final � (the bytes of a character that may
    continue), and a run of raw byte tokens (the decoder reads a run as a whole, and one invalid
    byte turns all of it into �).
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = ()) -> None:
        """The text continues the prompt; a character left open by the prompt is returned whole."""
        self._tokenizer = tokenizer
        self._tail_ids = _tail(tokenizer, prompt_ids)
        # The possible ends of the prompt's text, until text follows it.
        self._prompt_ends = _ends(tokenizer, self._tail_ids)
        self._num_returned = 0

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text that it makes certain, which may be empty."""
        if not self._tokenizer.is_text(token_id):
            return ""
        self._tail_ids.append(token_id)
        if self._tokenizer.is_byte(token_id):
            return ""
        text = self._tokenizer.decode(self._tail_ids)
        num_certain = _num_certain(text)
        num_known = self._num_known(text)
        if self._prompt_ends and num_known >= num_certain:
            return ""
        self._prompt_ends = ()
        new_text = text[num_known:num_certain]
        self._num_returned = num_certain
        if len(self._tail_ids) >= 2 * _KEPT_TOKENS:
            self._tail_ids = self._tail_ids[-_KEPT_TOKENS:]
            self._num_returned = _num_certain(self._tokenizer.decode(self._tail_ids))
        return new_text

    def finish(self) -> str:
        """Returns the remaining text; incomplete characters become �."""
        text = self._tokenizer.decode(self._tail_ids)
        new_text = text[self._num_known(text) :]
        self._tail_ids = []
        self._prompt_ends = ()
        self._num_returned = 0
        return new_text

    def _num_known(self, text: str) -> int:
        """Characters of `text` that were returned, or that the prompt ends with."""
        return _num_common(self._prompt_ends, text) if self._prompt_ends else self._num_returned


class PromptEcho:
    """The text of a prompt before its answer, so that both join to the text of all tokens."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int], text: str | None = None
    ) -> None:
        """`text` is the prompt's where it came as one; then no answer changes it."""
        self._tokenizer = tokenizer
        self._text = tokenizer.decode(prompt_ids) if text is None else text
        self._tail_ids = _tail(tokenizer, prompt_ids)
        self._answer_ids: list[int] = []

    def push(self, answer_ids: Sequence[int]) -> None:
        """Takes tokens of the answer, all in front of and in the first text that it has."""
        self._answer_ids += answer_ids

    def opening(self) -> str:
        """The text that no answer can change."""
        return self._text[: len(self._text) - self._num_open]

    def rest(self) -> str:
        """The remaining text, without the part that the answer changes and returns itself."""
        ends = _ends(self._tokenizer, self._tail_ids)
        both = self._tokenizer.decode([*self._tail_ids, *self._answer_ids])
        return both[len(ends[0]) - self._num_open : _num_common(ends, both)]

    @property
    def _num_open(self) -> int:
        """Characters at the prompt's end that may change: a last �, or a run of raw bytes."""
        text = self._tokenizer.decode(self._tail_ids)
        num_closed = len(self._tail_ids)
        while num_closed and self._tokenizer.is_byte(self._tail_ids[num_closed - 1]):
            num_closed -= 1
        if num_closed < len(self._tail_ids):
            return len(text) - len(self._tokenizer.decode(self._tail_ids[:num_closed]))
        return len(text) - _num_certain(text)


def _tail(tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> list[int]:
    """The prompt's last tokens that show: its last run of raw bytes, and some before that."""
    tail: list[int] = []
    num_others = 0
    looked_at = prompt_ids[-_MAX_PROMPT_TOKENS:]
    for token_id in reversed(looked_at):
        if not tokenizer.is_text(token_id):
            continue
        num_others += num_others > 0 or not tokenizer.is_byte(token_id)
        tail.append(token_id)
        if num_others == _KEPT_TOKENS:
            break
    if len(looked_at) < len(prompt_ids):
        # A run that is cut has to begin with a whole character.
        while tail and _continues_character(tokenizer, tail[-1]):
            tail.pop()
    return tail[::-1]


def _continues_character(tokenizer: Tokenizer, token_id: int) -> bool:
    """Whether it is a raw byte that UTF-8 has inside of characters only."""
    return tokenizer.is_byte(token_id) and 0x80 <= int(tokenizer.written(token_id)[3:5], 16) < 0xC0


def _ends(tokenizer: Tokenizer, tail_ids: list[int]) -> tuple[str, ...]:
    """The text of a prompt's tail, also without the raw bytes of a last character.

    That may be cut, and then the decoder turns the whole run of raw bytes into �.
    """
    num_whole = len(tail_ids)
    while num_whole and _continues_character(tokenizer, tail_ids[num_whole - 1]):
        num_whole -= 1
    if num_whole and tokenizer.is_byte(tail_ids[num_whole - 1]):
        num_whole -= 1
    return tokenizer.decode(tail_ids), tokenizer.decode(tail_ids[:num_whole])


def _num_common(ends: tuple[str, ...], text: str) -> int:
    """Characters with which `text` and one of `ends` begin, the most of them."""
    return max(_num_equal(end, text) for end in ends)


def _num_equal(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _num_certain(text: str) -> int:
    return len(text) - text.endswith(_INCOMPLETE)
