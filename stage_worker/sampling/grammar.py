"""Which tokens a grammar lets come next, worked out beside the device's thread.

A matcher belongs to one slot of the sampling rank. It is made anew when the slot opens and follows
the sequence's generated tokens, so a replay or another batch changes nothing. The matcher itself is
llguidance's; see "Lazy lexing and Earley parsing" at https://github.com/guidance-ai/llguidance.

Shapes: V vocabulary.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

from runtime.errors import GrammarError, ModelConfigError
from runtime.protocol.step import Step


@dataclass(frozen=True)
class GrammarTokenizer:
    """The model's vocabulary as matchers see it; read from the model's folder at its first use."""

    folder: Path
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    @cached_property
    def tokens(self) -> LLTokenizer:
        """Raises `ModelConfigError` where there is no tokenizer.json, or a broken one."""
        try:
            written = (self.folder / "tokenizer.json").read_text()
            eos = list(self.eos_token_ids)
            tokens = LLTokenizer(written, eos_token=eos)
            if tokens.vocab_size < self.vocab_size:
                # Rows of the embedding that no token has: nothing lets them come.
                tokens = LLTokenizer(written, n_vocab=self.vocab_size, eos_token=eos)
        except (OSError, ValueError) as error:
            raise ModelConfigError(
                folder=str(self.folder), problem=f"the tokenizer cannot be read: {error}"
            ) from error
        return tokens


class GrammarMatcher:
    """One slot's grammar and how far its sequence has come; used by the device's thread alone."""

    def __init__(self, grammar: str, tokenizer: GrammarTokenizer, pool: ThreadPoolExecutor) -> None:
        """`pool` has one thread: what it is given runs in order, while the device computes."""
        self._vocab_size = tokenizer.vocab_size
        self._eos_token_ids = tokenizer.eos_token_ids
        self._pool = pool
        self._num_followed = 0
        self._matcher = pool.submit(_make_matcher, grammar, tokenizer)
        self._forbidden: Future[Tensor] = pool.submit(self._find_forbidden)

    def forbidden(self, generated_ids: Sequence[int]) -> Tensor:
        """Tokens that may not come after all those generated so far, bool [V].

        Raises `GrammarError` where they do not follow the grammar or it is too complex, and what
        the tokenizer's reading raises.
        """
        self.follow(generated_ids[self._num_followed :])
        return self._forbidden.result()

    def follow(self, token_ids: Sequence[int]) -> None:
        """Takes the next generated tokens, early, so that `forbidden` need not wait."""
        if token_ids:
            self._num_followed += len(token_ids)
            self._forbidden = self._pool.submit(self._find_forbidden, list(token_ids))

    def _find_forbidden(self, token_ids: Sequence[int] = ()) -> Tensor:
        """In the pool: goes on by `token_ids`."""
        matcher = self._matcher.result()
        if token_ids:
            matcher.consume_tokens(list(token_ids))
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            raise GrammarError(problem=_first_line(matcher.get_error()))
        is_allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
        if not matcher.is_accepting():
            # Some models end with a token that is text, too.
            is_allowed[list(self._eos_token_ids)] = 0
        if not is_allowed.any():
            raise GrammarError(problem="no token of the model's can come next")
        return torch.from_numpy(is_allowed == 0)


class GrammarMatchers:
    """The matchers of one stage's slots, in one epoch; its thread ends with it."""

    def __init__(self, tokenizer: GrammarTokenizer) -> None:
        self._tokenizer = tokenizer
        self._matchers: dict[int, GrammarMatcher] = {}
        self._pool = ThreadPoolExecutor(1, "grammar")

    def get(self, slot: int) -> GrammarMatcher | None:
        """The slot's matcher; None for one that may say anything."""
        return self._matchers.get(slot)

    def apply(self, step: Step) -> None:
        """Takes a step's releases and openings over; a matcher is made while prompts are read."""
        for slot in step.released_slots:
            self._matchers.pop(slot, None)
        for opening in step.opened_slots:
            if grammar := opening.sampling.grammar:
                self._matchers[opening.slot] = GrammarMatcher(grammar, self._tokenizer, self._pool)


def _make_matcher(grammar: str, tokenizer: GrammarTokenizer) -> LLMatcher:
    return LLMatcher(tokenizer.tokens, grammar, log_level=0)


def _first_line(message: str) -> str:
    """The library goes on with its whole state."""
    return message.partition("\n")[0][:300]
