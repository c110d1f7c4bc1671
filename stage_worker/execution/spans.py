"""The rows of each sequence in a step, and the split of a step into two slices.

Pure arithmetic on a step's chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.protocol.step import Step

_BORDER_SHARE = 1 / 8
"""A slice may exceed half the step by this share of it, to split between two sequences."""


@dataclass(frozen=True, slots=True)
class Span:
    """A chunk's rows in the step, and its context: the sequence's tokens up to the last of them.

    The context leaves out the sequence's first `num_skipped` blocks, which no row attends to. A row
    attends to at most `window` tokens, itself included.
    """

    slot: int
    row: int
    num_tokens: int
    num_context: int
    num_skipped: int = 0
    window: int | None = None

    @property
    def num_hidden(self) -> int:
        """Tokens at the begin of the context that the last row does not attend to."""
        return 0 if self.window is None else max(0, self.num_context - self.window)


@dataclass(frozen=True, slots=True)
class StepSlice:
    """Consecutive rows of a step; the rows of `spans` are relative to the slice."""

    rows: slice
    spans: tuple[Span, ...]


def step_spans(step: Step) -> tuple[Span, ...]:
    """The spans of the step's chunks, in order."""
    spans = []
    row = 0
    for chunk in step.chunks:
        num_tokens = len(chunk.token_ids)
        spans.append(Span(chunk.slot, row, num_tokens, chunk.position + num_tokens))
        row += num_tokens
    return tuple(spans)


def split_step(spans: Sequence[Span], min_split_tokens: int | None) -> tuple[StepSlice, ...]:
    """The step as one slice or, from `min_split_tokens` tokens on, as two of about equal size.

    The split is between two sequences if they meet near the middle, otherwise inside a chunk: each
    layer writes the first slice's keys and values before the second slice reads them.
    """
    num_tokens = spans[-1].row + spans[-1].num_tokens
    if min_split_tokens is None or num_tokens < max(2, min_split_tokens):
        return (StepSlice(slice(0, num_tokens), tuple(spans)),)
    middle = num_tokens // 2
    border = min((span.row for span in spans), key=lambda row: abs(row - middle))
    split_at = border if abs(border - middle) <= _BORDER_SHARE * num_tokens else middle
    parts = [part for span in spans for part in _split(span, split_at)]
    first = tuple(part for part in parts if part.row < split_at)
    second = tuple(replace(part, row=part.row - split_at) for part in parts if part.row >= split_at)
    return (StepSlice(slice(0, split_at), first), StepSlice(slice(split_at, num_tokens), second))


def _split(span: Span, row: int) -> tuple[Span, ...]:
    """The chunk, as two spans if `row` is inside it."""
    num_first = row - span.row
    if not 0 < num_first < span.num_tokens:
        return (span,)
    num_second = span.num_tokens - num_first
    first = replace(span, num_tokens=num_first, num_context=span.num_context - num_second)
    return first, replace(span, row=row, num_tokens=num_second)
