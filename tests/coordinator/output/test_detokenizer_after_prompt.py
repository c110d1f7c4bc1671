"""Streams of tokens that continue a prompt: its text and theirs join without a seam."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.output.detokenizer import Detokenizer, PromptEcho
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


def continuation(tokenizer: Tokenizer, prompt: Sequence[int], answer: Sequence[int]) -> str:
    detokenizer = Detokenizer(tokenizer, prompt)
    return "".join([*map(detokenizer.push, answer), detokenizer.finish()])


def assert_joins(tokenizer: Tokenizer, prompt: Sequence[int], answer: Sequence[int]) -> None:
    """The stream is all text but the prompt's; behind an echo of the prompt it is all text."""
    whole, prompt_text = tokenizer.decode([*prompt, *answer]), tokenizer.decode(prompt)
    streamed = continuation(tokenizer, prompt, answer)
    assert whole.endswith(streamed)
    if whole.startswith(prompt_text):
        assert prompt_text + streamed == whole
    echo = PromptEcho(tokenizer, prompt)
    opening = echo.opening()
    assert whole.startswith(opening)
    echo.push(answer)
    assert opening + echo.rest() + streamed == whole


@given(
    prompt=st.lists(st.integers(0, SMOLLM2_VOCAB_SIZE + 5), max_size=30),
    answer=st.lists(st.integers(0, SMOLLM2_VOCAB_SIZE + 5), max_size=30),
)
@settings(deadline=None)
def test_stream_after_any_byte_level_prompt_joins_it(
    bundled: Tokenizer, prompt: list[int], answer: list[int]
) -> None:
    assert_joins(bundled, prompt, answer)


@given(text=st.text(min_size=1, max_size=20), data=st.data())
@settings(deadline=None)
def test_stream_after_prompt_cut_anywhere_in_a_text_gives_whole_characters(
    bundled: Tokenizer, text: str, data: st.DataObject
) -> None:
    token_ids = bundled.encode(text)
    cut = data.draw(st.integers(0, len(token_ids)))
    assert_joins(bundled, token_ids[:cut], token_ids[cut:])


@given(
    prompt=st.lists(st.integers(0, NUM_BYTE_FALLBACK + 5), max_size=30),
    answer=st.lists(st.integers(0, NUM_BYTE_FALLBACK + 5), max_size=30),
)
@settings(deadline=None, max_examples=300)
def test_stream_after_any_byte_fallback_prompt_joins_it(
    byte_fallback: Tokenizer, prompt: list[int], answer: list[int]
) -> None:
    assert_joins(byte_fallback, prompt, answer)


def test_stream_after_half_a_character_tells_it_whole(
    bundled: Tokenizer, byte_fallback: Tokenizer
) -> None:
    for cut in range(1, 4):
        emoji = byte_ids("😀".encode())
        prompt, answer = pieces("▁hello") + emoji[:cut], emoji[cut:] + pieces("lo")
        assert continuation(byte_fallback, prompt, answer) == "😀lo"
        assert continuation(byte_fallback, emoji + prompt[1:], answer) == "😀lo"
    girl = bundled.encode("a👧")
    assert continuation(bundled, girl[:-1], girl[-1:]) == "👧"


def test_stream_after_prompt_whose_last_bytes_are_a_character_does_not_tell_it_again(
    byte_fallback: Tokenizer,
) -> None:
    prompt = pieces("▁hello") + byte_ids(("😀" * 9).encode())
    assert continuation(byte_fallback, prompt, pieces("lo")) == "lo"
    assert continuation(byte_fallback, prompt, byte_ids("é".encode())) == "é"


def test_stream_after_very_long_run_of_bytes_joins_it_all_the_same(
    byte_fallback: Tokenizer,
) -> None:
    for num_characters in (1_365, 1_366, 5_000):
        run = byte_ids(("界" * num_characters).encode())
        assert continuation(byte_fallback, run, pieces("lo")) == "lo"
        assert continuation(byte_fallback, run[:-1], [*run[-1:], *pieces("lo")]) == "界lo"


def test_stream_after_prompt_without_text_looks_at_its_end_alone(
    byte_fallback: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_looks = 0
    is_text = byte_fallback.is_text

    def counted(token_id: int) -> bool:
        nonlocal num_looks
        num_looks += 1
        return is_text(token_id)

    monkeypatch.setattr(byte_fallback, "is_text", counted)
    Detokenizer(byte_fallback, (1,) * 100_000)
    assert num_looks <= 4_096


def test_stream_after_prompt_with_broken_end_tells_the_answer_alone(bundled: Tokenizer) -> None:
    girl, word = bundled.encode("a👧"), bundled.encode(" word")
    assert continuation(bundled, girl[:-1], word) == " word"


def test_stream_of_word_after_prompt_keeps_its_space(byte_fallback: Tokenizer) -> None:
    assert continuation(byte_fallback, [1, *pieces("▁hello")], pieces("▁hello")) == " hello"
    assert continuation(byte_fallback, [1], pieces("▁hello")) == "hello"


def test_echo_streamed_before_an_answer_leaves_out_an_open_character(bundled: Tokenizer) -> None:
    girl = bundled.encode("a👧")
    echo = PromptEcho(bundled, girl[:-1])
    assert echo.opening() == "a"
    echo.push(girl[-1:])
    assert echo.rest() == ""
    unanswered = PromptEcho(bundled, girl[:-1])
    assert unanswered.opening() + unanswered.rest() == "a" + REPLACEMENT


def test_echo_of_a_run_of_bytes_behind_a_cut_one_is_whole(byte_fallback: Tokenizer) -> None:
    assert_joins(byte_fallback, [131, 197, 131, 3, 3, 3, 3, 3, 259, 3], [])
