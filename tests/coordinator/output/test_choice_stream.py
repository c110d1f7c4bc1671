"""The text of an answer: detokenized, and cut at stop strings once enough tokens are there."""

from pathlib import Path

from coordinator.output.choice_stream import OutputText
from coordinator.output.detokenizer import Detokenizer
from coordinator.output.stop_strings import StopStrings
from coordinator.tokenization.tokenizer import Tokenizer
from runtime.model_config.model_config import load_model_config


def make_text(folder: Path, stop: str, min_tokens: int) -> OutputText:
    tokenizer = Tokenizer.load(folder, load_model_config(folder))
    return OutputText(Detokenizer(tokenizer), StopStrings([stop], False), min_tokens)


def test_stop_string_before_min_tokens_does_not_count(toy_folder: Path) -> None:
    text = make_text(toy_folder, "w5", min_tokens=3)
    assert [text.push(5), text.push(6), text.push(7), text.push(8)] == ["w5", " w6", " w7", " w8"]
    assert text.push(5) == " "
    assert text.has_stopped


def test_stop_string_that_the_last_token_completes_counts(toy_folder: Path) -> None:
    text = make_text(toy_folder, "6", min_tokens=2)
    assert [text.push(5), text.push(6)] == ["w5", " w"]
    assert text.has_stopped
    assert text.finish() == ""


def test_withheld_text_comes_out_at_the_end(toy_folder: Path) -> None:
    text = make_text(toy_folder, "w6 w", min_tokens=0)
    assert [text.push(5), text.push(6)] == ["w5 "[:2], " "]
    assert text.finish() == "w6"
    assert not text.has_stopped
