"""Streams of tokens against decoding all at once: no half characters, nothing lost."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.output.detokenizer import Detokenizer
from coordinator.tokenization.tokenizer import Tokenizer
from tests.coordinator.tokenization.tokenizer_models import (
    NUM_BYTE_FALLBACK,
    REPLACEMENT,
    SMOLLM2_VOCAB_SIZE,
    byte_ids,
    load_bundled,
    load_byte_fallback,
    pieces,
)


@pytest.fixture(scope="module", autouse=True)
def bundled() -> Tokenizer:
    """Converted once for this machine: made before any test turns to a cache of its own."""
    return load_bundled()


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_byte_fallback(tmp_path_factory.mktemp("tokenizer"))


def stream(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.push, token_ids), detokenizer.finish()]


@given(text=st.text(max_size=200))
@settings(deadline=None)
def test_stream_of_encoded_text_gives_it_back_in_whole_characters(
    bundled: Tokenizer, text: str
) -> None:
    token_ids = bundled.encode(text)
    parts = stream(bundled, token_ids)
    assert "".join(parts) == bundled.decode(token_ids)
    # The vocabulary lacks some bytes of rare characters, which no decoding gives back.
    if bundled.decode(token_ids) == text and REPLACEMENT not in text:
        assert not any(REPLACEMENT in part for part in parts)


@given(token_ids=st.lists(st.integers(0, SMOLLM2_VOCAB_SIZE + 5), max_size=100))
@settings(deadline=None)
def test_stream_of_any_byte_level_tokens_equals_one_decode(
    bundled: Tokenizer, token_ids: list[int]
) -> None:
    assert "".join(stream(bundled, token_ids)) == bundled.decode(token_ids)


@given(token_ids=st.lists(st.integers(0, 300), max_size=100))
@settings(deadline=None, max_examples=300)
def test_stream_of_special_tokens_and_raw_bytes_equals_one_decode(
    bundled: Tokenizer, token_ids: list[int]
) -> None:
    assert "".join(stream(bundled, token_ids)) == bundled.decode(token_ids)


@given(token_ids=st.lists(st.integers(0, NUM_BYTE_FALLBACK + 5), max_size=100))
@settings(deadline=None, max_examples=300)
def test_stream_of_any_byte_fallback_tokens_equals_one_decode(
    byte_fallback: Tokenizer, token_ids: list[int]
) -> None:
    assert "".join(stream(byte_fallback, token_ids)) == byte_fallback.decode(token_ids)


@given(
    runs=st.lists(
        st.one_of(
            st.text(min_size=1, max_size=3).map(lambda text: byte_ids(text.encode())),
            st.binary(min_size=1, max_size=6).map(byte_ids),
            st.lists(st.sampled_from(pieces("▁hello", "lo", "▁", "�", "世")), min_size=1),
            st.just([0, 1, 2]),
        ),
        max_size=20,
    )
)
@settings(deadline=None, max_examples=300)
def test_stream_of_mixed_byte_runs_equals_one_decode(
    byte_fallback: Tokenizer, runs: list[list[int]]
) -> None:
    token_ids = list(itertools.chain.from_iterable(runs))
    assert "".join(stream(byte_fallback, token_ids)) == byte_fallback.decode(token_ids)


def test_push_of_emoji_over_tokens_waits_for_the_last(bundled: Tokenizer) -> None:
    token_ids = bundled.encode("👧")
    assert len(token_ids) > 1
    assert stream(bundled, token_ids) == [*[""] * (len(token_ids) - 1), "👧", ""]


def test_push_of_byte_fallback_emoji_shows_with_the_next_token(byte_fallback: Tokenizer) -> None:
    token_ids = pieces("▁hello") + byte_ids("😀".encode()) + pieces("lo")
    assert stream(byte_fallback, token_ids) == ["hello", "", "", "", "", "😀lo", ""]


def test_finish_after_half_a_character_shows_it_as_no_text(bundled: Tokenizer) -> None:
    token_ids = bundled.encode("a👧")[:-1]
    parts = stream(bundled, token_ids)
    assert parts[0] == "a"
    assert parts[-1] == REPLACEMENT


def test_finish_after_byte_run_shows_all_of_it(byte_fallback: Tokenizer) -> None:
    assert stream(byte_fallback, pieces("lo") + byte_ids("é".encode())) == ["lo", "", "", "é"]
    assert stream(byte_fallback, byte_ids(b"A\xff")) == ["", "", REPLACEMENT * 2]


def test_push_of_special_tokens_shows_nothing(bundled: Tokenizer) -> None:
    assert stream(bundled, (1, 2, 0, 2)) == [""] * 5


def test_push_of_special_token_inside_a_character_keeps_it_whole(bundled: Tokenizer) -> None:
    first, *rest = bundled.encode("👧")
    assert "".join(stream(bundled, (first, 2, *rest))) == "👧"


def test_push_of_word_after_special_tokens_keeps_its_space(byte_fallback: Tokenizer) -> None:
    parts = stream(byte_fallback, pieces("lo") + [2] * 20 + pieces("▁hello"))
    assert "".join(parts) == "lo hello"


def test_push_of_endless_broken_bytes_looks_at_a_bounded_tail(
    bundled: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = bundled.encode("👧")[0]
    lengths: list[int] = []
    decode = bundled.decode

    def measured(token_ids: Sequence[int]) -> str:
        lengths.append(len(token_ids))
        return decode(token_ids)

    monkeypatch.setattr(bundled, "decode", measured)
    parts = stream(bundled, [broken] * 500)
    assert max(lengths) <= 16
    assert "".join(parts) == decode([broken] * 500)
