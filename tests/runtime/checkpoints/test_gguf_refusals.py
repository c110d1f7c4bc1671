"""GGUF files that cannot be converted: refused by name, whatever is wrong with them."""

import contextlib
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import (
    CheckpointError,
    ModelConfigError,
    StagemeshError,
    UnknownArchitectureError,
)
from tests.runtime.checkpoints.tiny_gguf import GgufOptions, convert, make_model, write_gguf


def test_conversion_of_unknown_rope_factors_is_refused(tmp_path: Path) -> None:
    factors = np.linspace(1, 2, 8, dtype=np.float32)
    options = GgufOptions(tensors={"rope_freqs.weight": factors})
    file = write_gguf(tmp_path / "m.gguf", make_model(), options)
    with pytest.raises(ModelConfigError, match=r"rope_freqs\.weight"):
        convert(file, tmp_path / "out")


def test_conversion_of_yarn_is_refused_by_name(tmp_path: Path) -> None:
    options = GgufOptions(rope_scaling=("yarn", 4.0))
    file = write_gguf(tmp_path / "m.gguf", make_model(), options)
    with pytest.raises(ModelConfigError, match="'yarn' is not supported"):
        convert(file, tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (GgufOptions(architecture="mamba"), "'mamba'"),
        (GgufOptions(metadata={"llama.expert_count": 8}), "'llama with experts'"),
    ],
)
def test_conversion_of_unknown_architecture_is_refused_by_name(
    tmp_path: Path, options: GgufOptions, name: str
) -> None:
    file = write_gguf(tmp_path / "m.gguf", make_model(), options)
    with pytest.raises(UnknownArchitectureError, match=f"{name} is not supported"):
        convert(file, tmp_path / "out")


def test_conversion_of_unknown_tensor_is_refused_by_name(tmp_path: Path) -> None:
    options = GgufOptions(tensors={"blk.0.attn_sinks.weight": np.ones(4, np.float32)})
    file = write_gguf(tmp_path / "m.gguf", make_model(), options)
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_sinks\.weight"):
        convert(file, tmp_path / "out")


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", make_model())


@given(st.floats(0, 1, exclude_max=True))
@settings(max_examples=15, deadline=None)
def test_conversion_of_truncated_file_is_refused(
    tmp_path_factory: pytest.TempPathFactory, whole_file: Path, part: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    file = folder / "m.gguf"
    content = whole_file.read_bytes()
    file.write_bytes(content[: math.floor(part * len(content))])
    with pytest.raises(CheckpointError, match=r"m\.gguf"):
        convert(file, folder / "out")


def test_conversion_of_file_with_false_array_length_is_refused(
    tmp_path: Path, whole_file: Path
) -> None:
    key = b"tokenizer.ggml.token_type"
    content = whole_file.read_bytes()
    at = content.index(key) + len(key) + 8
    file = tmp_path / "m.gguf"
    file.write_bytes(content[:at] + (2**60).to_bytes(8, "little") + content[at + 8 :])
    with pytest.raises(CheckpointError, match="no readable GGUF file"):
        convert(file, tmp_path / "out")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # weights of another type may be no numbers
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 255))
@settings(max_examples=60, deadline=None)
def test_conversion_of_corrupted_metadata_never_fails_otherwise(
    tmp_path_factory: pytest.TempPathFactory, whole_file: Path, part: float, value: int
) -> None:
    folder = tmp_path_factory.mktemp("corrupted")
    content = bytearray(whole_file.read_bytes())
    content[int(part * content.index(b"blk.1.attn_q"))] = value
    (folder / "m.gguf").write_bytes(content)
    with contextlib.suppress(StagemeshError):
        convert(folder / "m.gguf", folder / "out")
