"""The split of a step into two slices, between sequences or inside a chunk."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.protocol.step import SequenceChunk, Step
from stage_worker.execution.spans import Span, split_step, step_spans

CHUNKS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 50)), min_size=1, max_size=12)


def make_step(*chunks: tuple[int, int]) -> Step:
    """A step of chunks with these numbers of tokens and positions."""
    return Step(
        0,
        chunks=tuple(
            SequenceChunk(slot, position, (1,) * num_tokens)
            for slot, (num_tokens, position) in enumerate(chunks)
        ),
    )


@given(chunks=CHUNKS)
def test_split_step_any_step_keeps_rows_and_contexts(
    chunks: list[tuple[int, int]],
) -> None:
    spans = step_spans(make_step(*chunks))
    slices = split_step(spans, 2)
    rows = [
        (part.rows.start + span.row + offset, span.slot, position)
        for part in slices
        for span in part.spans
        for offset, position in enumerate(
            range(span.num_context - span.num_tokens, span.num_context)
        )
    ]
    expected = [
        (slot, position + offset)
        for slot, (num_tokens, position) in enumerate(chunks)
        for offset in range(num_tokens)
    ]
    assert [row for row, _, _ in rows] == list(range(len(expected)))
    assert [(slot, position) for _, slot, position in rows] == expected
    assert len(slices) == (1 if len(expected) == 1 else 2)
    for part in slices:
        num_rows = part.rows.stop - part.rows.start
        assert sum(span.num_tokens for span in part.spans) == num_rows
        if len(slices) == 2:
            assert abs(num_rows - len(expected) / 2) <= len(expected) / 8 + 0.5


def test_split_step_near_a_border_leaves_both_sequences_whole() -> None:
    first, second = split_step(step_spans(make_step((9, 0), (7, 20))), 2)
    assert (first.rows, second.rows) == (slice(0, 9), slice(9, 16))
    assert first.spans == (Span(0, 0, 9, 9),)
    assert second.spans == (Span(1, 0, 7, 27),)


def test_split_step_one_chunk_is_split_in_the_middle() -> None:
    first, second = split_step(step_spans(make_step((1, 5), (12, 30))), 2)
    assert first.spans == (Span(0, 0, 1, 6), Span(1, 1, 5, 35))
    assert second.spans == (Span(1, 0, 7, 42),)


def test_split_step_below_the_minimum_is_one_slice() -> None:
    spans = step_spans(make_step((5, 0), (4, 0)))
    for min_split_tokens in (None, 10):
        (whole,) = split_step(spans, min_split_tokens)
        assert (whole.rows, whole.spans) == (slice(0, 9), spans)
    assert len(split_step(spans, 9)) == 2
