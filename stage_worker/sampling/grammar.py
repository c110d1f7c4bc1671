"""Computes which tokens a grammar allows next, in parallel with the device's thread.

Each slot with a grammar has a matcher on the sampling rank. It is created when the slot opens and
follows the sequence's generated tokens, so the result does not depend on replays or batches. The
matcher is llguidance's; see "Lazy lexing and Earley parsing" at
https://github.com/guidance-ai/llguidance.

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
    """The vocabulary for matchers, read from the model's folder at its first use."""

    folder: Path
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    @cached_property
    def tokens(self) -> LLTokenizer:
        """Raises `ModelConfigError` if tokenizer.json is missing or invalid."""
        try:
            written = (self.folder / "tokenizer.json").read_text()
            eos = list(self.eos_token_ids)
            tokens = LLTokenizer(written, eos_token=eos)
            if tokens.vocab_size < self.vocab_size:
                # Rows of the embedding without a token are never allowed.
                tokens = LLTokenizer(written, n_vocab=self.vocab_size, eos_token=eos)
        except (OSError, ValueError) as error:
            raise ModelConfigError(
                folder=str(self.folder), problem=f"the tokenizer cannot be read: {error}"
            ) from error
        return tokens


class GrammarMatcher:
    """One slot's grammar and its position in it; used on the device's thread only."""

    def __init__(self, grammar: str, tokenizer: GrammarTokenizer, pool: ThreadPoolExecutor) -> None:
        """`pool` has one thread, which runs submitted calls in order."""
        self._vocab_size = tokenizer.vocab_size
        self._eos_token_ids = tokenizer.eos_token_ids
        self._pool = pool
        self._num_followed = 0
        self._matcher = pool.submit(_make_matcher, grammar, tokenizer)
        self._forbidden: Future[Tensor] = pool.submit(self._find_forbidden)

    def forbidden(self, generated_ids: Sequence[int]) -> Tensor:
        """The tokens that may not follow `generated_ids`, bool [V].

        Raises `GrammarError` if `generated_ids` violate the grammar or it is too complex, and what
        `GrammarTokenizer.tokens` raises.
        """
        self.follow(generated_ids[self._num_followed :])
        return self._forbidden.result()

    def follow(self, token_ids: Sequence[int]) -> None:
        """Advances by generated tokens in the background, so that `forbidden` need not wait."""
        if token_ids:
            self._num_followed += len(token_ids)
            self._forbidden = self._pool.submit(self._find_forbidden, list(token_ids))

    def _find_forbidden(self, token_ids: Sequence[int] = ()) -> Tensor:
        """In the pool: advances by `token_ids` and computes the next mask."""
        matcher = self._matcher.result()
        if token_ids:
            matcher.consume_tokens(list(token_ids))
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            raise GrammarError(problem=_first_line(matcher.get_error()))
        is_allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
        if not matcher.is_accepting():
            # In some models the end token is also text.
            is_allowed[list(self._eos_token_ids)] = 0
        if not is_allowed.any():
            raise GrammarError(problem="no token of the model's can come next")
        return torch.from_numpy(is_allowed == 0)


class GrammarMatchers:
    """The matchers of one epoch's slots, and their thread."""

    def __init__(self, tokenizer: GrammarTokenizer) -> None:
        self._tokenizer = tokenizer
        self._matchers: dict[int, GrammarMatcher] = {}
        self._pool = ThreadPoolExecutor(1, "grammar")

    def get(self, slot: int) -> GrammarMatcher | None:
        """The slot's matcher; None for a slot without a grammar."""
        return self._matchers.get(slot)

    def apply(self, step: Step) -> None:
        """Applies a step's releases and openings; matchers are created in the background."""
        for slot in step.released_slots:
            self._matchers.pop(slot, None)
        for opening in step.opened_slots:
            if grammar := opening.sampling.grammar:
                self._matchers[opening.slot] = GrammarMatcher(grammar, self._tokenizer, self._pool)


def _make_matcher(grammar: str, tokenizer: GrammarTokenizer) -> LLMatcher:
    return LLMatcher(tokenizer.tokens, grammar, log_level=0)


def _first_line(message: str) -> str:
    """The message without the dump of the library's state."""
    return message.partition("\n")[0][:300]
