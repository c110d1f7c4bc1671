"""Which rows of a step belong to which sequence, and where a step is cut into two slices.

Pure arithmetic on a step's chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.protocol.step import Step

_BORDER_SHARE = 1 / 8
"""A slice may be larger than half by this part of the step, if that leaves its sequences whole."""


@dataclass(frozen=True, slots=True)
class Span:
    """A chunk's rows in the step, and its context: everything held with these rows included.

    Of the sequence's blocks the first `num_skipped` are left out of that, because no row sees them.
    A row sees at most `window` tokens, itself the last.
    """

    slot: int
    row: int
    num_tokens: int
    num_context: int
    num_skipped: int = 0
    window: int | None = None

    @property
    def num_hidden(self) -> int:
        """Tokens at the context's beginning that the last row does not see."""
        return 0 if self.window is None else max(0, self.num_context - self.window)


@dataclass(frozen=True, slots=True)
class StepSlice:
    """Some consecutive rows of a step; its spans count their rows from its first."""

    rows: slice
    spans: tuple[Span, ...]


def step_spans(step: Step) -> tuple[Span, ...]:
    """Those of the chunks, in order."""
    spans = []
    row = 0
    for chunk in step.chunks:
        num_tokens = len(chunk.token_ids)
        spans.append(Span(chunk.slot, row, num_tokens, chunk.position + num_tokens))
        row += num_tokens
    return tuple(spans)


def cut_slices(spans: Sequence[Span], min_split_tokens: int | None) -> tuple[StepSlice, ...]:
    """The step in one slice or, from `min_split_tokens` tokens on, in two of about the same size.

    It is cut between two sequences where they meet near the middle, or inside a chunk: each layer
    writes the first slice's keys and values before the second one reads them.
    """
    num_tokens = spans[-1].row + spans[-1].num_tokens
    if min_split_tokens is None or num_tokens < max(2, min_split_tokens):
        return (StepSlice(slice(0, num_tokens), tuple(spans)),)
    middle = num_tokens // 2
    border = min((span.row for span in spans), key=lambda row: abs(row - middle))
    cut = border if abs(border - middle) <= _BORDER_SHARE * num_tokens else middle
    parts = [part for span in spans for part in _cut(span, cut)]
    first = tuple(part for part in parts if part.row < cut)
    second = tuple(replace(part, row=part.row - cut) for part in parts if part.row >= cut)
    return (StepSlice(slice(0, cut), first), StepSlice(slice(cut, num_tokens), second))


def _cut(span: Span, row: int) -> tuple[Span, ...]:
    """The chunk as two, if the step is cut inside it."""
    num_first = row - span.row
    if not 0 < num_first < span.num_tokens:
        return (span,)
    num_second = span.num_tokens - num_first
    first = replace(span, num_tokens=num_first, num_context=span.num_context - num_second)
    return first, replace(span, row=row, num_tokens=num_second)
