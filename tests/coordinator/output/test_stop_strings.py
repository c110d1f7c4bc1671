"""Stop strings in a growing text: found wherever they are, and never shown before that is decided.

Case 11: vllm#3574, vllm#2577, TGI#1254.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.output.stop_strings import StopStrings

texts = st.text("ab", max_size=30)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4)


def expected(text: str, stops: list[str], include_stop: bool) -> tuple[str, bool]:
    """The definition: the first to be complete, of equal ones the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(map(len, found))
            return text[: end if include_stop else end - longest], True
    return text, False


@given(texts, stop_lists, st.booleans(), st.lists(st.integers(0, 30)))
def test_any_pieces_of_a_text_give_the_same_answer(
    text: str, stops: list[str], include_stop: bool, cuts: list[int]
) -> None:
    matcher = StopStrings(stops, include_stop)
    wanted, is_stopped = expected(text, stops, include_stop)
    shown, begin = "", 0
    for end in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        shown += matcher.push(text[begin:end])
        begin = end
        assert wanted.startswith(shown)
    assert (shown + matcher.finish(), matcher.has_stopped) == (wanted, is_stopped)


@given(texts, stop_lists)
def test_no_more_is_withheld_than_may_become_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops, include_stop=False)
    shown = ""
    for end in range(1, len(text) + 1):
        shown += matcher.push(text[end - 1])
        if matcher.has_stopped:
            return
        endings = [text[end - size : end] for size in range(1, end + 1)]
        undecided = [e for e in endings if any(s.startswith(e) and s != e for s in stops)]
        assert shown == text[: end - max(map(len, undecided), default=0)]


@pytest.mark.parametrize(
    ("pieces", "stops", "shown"),
    [
        (["Hello", "\nUs", "er:"], ["\nUser:"], "Hello"),
        (["aab"], ["ab", "aab"], ""),
        (["x", "END", "more"], ["END"], "x"),
        (["in one. Piece"], [". P"], "in one"),
        (["naïve ", "caf", "é au"], ["café"], "naïve "),
        (["👍🏽"], ["🏽"], "👍"),
    ],
)
def test_stop_strings_inside_and_across_tokens(
    pieces: list[str], stops: list[str], shown: str
) -> None:
    matcher = StopStrings(stops, include_stop=False)
    assert "".join(map(matcher.push, pieces)) + matcher.finish() == shown
    assert matcher.has_stopped
