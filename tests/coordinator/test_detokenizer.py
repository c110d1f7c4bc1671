"""Streams of tokens against decoding all at once: no half characters, nothing lost."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.detokenizer import Detokenizer, PromptEcho
from coordinator.tokenizer import Tokenizer
from runtime.model_config import load_model_config
from runtime.model_store import resolve_model
from tests.coordinator.tokenizer_models import PIECES, load_byte_fallback

SMOLLM2_VOCAB_SIZE = 49_152
NUM_BYTE_FALLBACK = 259 + len(PIECES)
REPLACEMENT = "\ufffd"


@pytest.fixture(scope="module", autouse=True)
def bundled() -> Tokenizer:
    """Converted once for this machine: made before any test turns to a cache of its own."""
    folder = resolve_model("smollm2")
    return Tokenizer.load(folder, load_model_config(folder))


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_byte_fallback(tmp_path_factory.mktemp("tokenizer"))


def stream(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.push, token_ids), detokenizer.finish()]


def byte_ids(data: bytes) -> list[int]:
    """Raw byte tokens of the byte-fallback tokenizer."""
    return [3 + byte for byte in data]


def pieces(*names: str) -> list[int]:
    return [259 + PIECES.index(name) for name in names]


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
