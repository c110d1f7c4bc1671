"""Which log-probabilities match the canary's reference, and how the reference is cached."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.membership.assignment import CanaryReference
from coordinator.replica.canary import (
    canary_prompt,
    check_canary,
    read_reference,
    write_reference,
)
from runtime.errors import CanaryMismatchError
from runtime.protocol.step import SampledToken

PROMPT = (1, 2, 3)
REFERENCE = CanaryReference(PROMPT, (4, 5, 6), (-0.5, -1.5, -2.0))


def answer(ids: tuple[int, ...], logprobs: tuple[float, ...]) -> SampledToken:
    return SampledToken(0, ids[0] if ids else 0, 0.0, ids, logprobs)


def test_check_canary_equal_passes() -> None:
    check_canary(REFERENCE, answer((4, 5, 6), (-0.5, -1.5, -2.0)), "float32")


def test_check_canary_rounding_and_near_ties_at_the_end_passes() -> None:
    check_canary(REFERENCE, answer((4, 5, 9), (-0.5001, -1.5001, -1.9999)), "float32")


@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [
        ((4, 5, 6), (-0.5, -1.5, -2.1)),
        ((4, 5, 9), (-0.5, -1.5, -1.7)),
        ((7, 8, 9), (-0.5, -1.5, -2.0)),
        ((4, 5, 6), (-0.5, math.nan, -2.0)),
        ((), ()),
    ],
)
def test_check_canary_different_is_refused(
    ids: tuple[int, ...], logprobs: tuple[float, ...]
) -> None:
    with pytest.raises(CanaryMismatchError):
        check_canary(REFERENCE, answer(ids, logprobs), "float32")


def test_check_canary_coarser_dtypes_have_a_larger_tolerance() -> None:
    rounded = answer((4, 5, 6), (-0.55, -1.45, -2.05))
    check_canary(REFERENCE, rounded, "bfloat16")
    with pytest.raises(CanaryMismatchError):
        check_canary(REFERENCE, rounded, "float32")


def test_canary_prompt_is_valid_and_fits() -> None:
    assert len(canary_prompt(49152, 512)) == 16
    assert len(canary_prompt(49152, 4)) == 3
    assert max(canary_prompt(30, 512)) < 30


def test_reference_written_is_read_back(tmp_path: Path) -> None:
    write_reference(tmp_path / "canary", "f00", REFERENCE)
    assert read_reference(tmp_path / "canary", "f00", PROMPT) == REFERENCE
    assert [path.suffix for path in (tmp_path / "canary").iterdir()] == [""]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("-1.5", "-1.6"),
        lambda text: text.replace("-1.5", "NaN"),
        lambda text: text.replace("-1.5", '"a"'),
        lambda text: text.replace("{", "[" * 10_000),
        lambda text: text.split("\n")[1],
    ],
)
def test_reference_damaged_counts_as_absent(tmp_path: Path, damage: Callable[[str], str]) -> None:
    write_reference(tmp_path, "f00", REFERENCE)
    (file,) = tmp_path.iterdir()
    file.write_text(damage(file.read_text()))
    assert read_reference(tmp_path, "f00", PROMPT) is None


def test_reference_not_text_counts_as_absent(tmp_path: Path) -> None:
    write_reference(tmp_path, "f00", REFERENCE)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"\xff\n\x00")
    assert read_reference(tmp_path, "f00", PROMPT) is None


def test_write_reference_failure_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "canary-2-f00" / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="f00"):
        write_reference(tmp_path, "f00", REFERENCE)
    assert [path.name for path in tmp_path.iterdir()] == ["canary-2-f00"]


def test_check_canary_against_a_reference_with_nan_is_refused() -> None:
    broken = CanaryReference(PROMPT, (4, 5, 6), (-0.5, math.nan, -2.0))
    with pytest.raises(CanaryMismatchError):
        check_canary(broken, answer((4, 5, 6), (-0.5, -1.5, -2.0)), "float32")


def test_reference_of_another_prompt_or_model_counts_as_absent(tmp_path: Path) -> None:
    write_reference(tmp_path, "f00", REFERENCE)
    assert read_reference(tmp_path, "f00", (9,)) is None
    assert read_reference(tmp_path, "f01", PROMPT) is None
