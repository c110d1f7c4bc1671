"""The index of a checkpoint, and every way in which its files can be inconsistent."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from runtime.checkpoints.checkpoint import Checkpoint
from runtime.errors import CheckpointError, UnsafeCheckpointError

TENSORS: dict[str, npt.NDArray[Any]] = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b.weight": np.arange(6, dtype=np.float16),
    "c.weight": np.zeros((0, 4), dtype=np.float32),
    "d.weight": np.arange(50_000, dtype=np.float32),
}
INDEX = "model.safetensors.index.json"


def write_single(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    save_file(TENSORS, folder / "model.safetensors")
    return folder


def write_sharded(folder: Path, **changes: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    shards = {
        "one.safetensors": ("a.weight", "b.weight"),
        "two.safetensors": ("c.weight", "d.weight"),
    }
    for file, names in shards.items():
        save_file({name: TENSORS[name] for name in names}, folder / file)
    weight_map = {name: file for file, names in shards.items() for name in names} | changes
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def with_header(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A single-file checkpoint whose header was edited, with the data unchanged."""
    file = write_single(folder) / "model.safetensors"
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])
    return folder


@pytest.mark.parametrize("write", [write_single, write_sharded])
def test_open_of_whole_checkpoint_finds_every_tensor(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    checkpoint = Checkpoint.open(write(tmp_path / "m"))
    assert checkpoint.tensors.keys() == TENSORS.keys()
    for name, expected in TENSORS.items():
        info = checkpoint.tensors[name]
        assert info.shape == expected.shape
        assert info.dtype == {"float32": "F32", "float16": "F16"}[expected.dtype.name]
        assert info.num_bytes == expected.nbytes
        data = info.file.read_bytes()[info.offset : info.offset + info.num_bytes]
        assert data == expected.tobytes()


def test_fingerprint_of_copy_is_the_same(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "m")
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    assert Checkpoint.open(copy).fingerprint == Checkpoint.open(folder).fingerprint


def change_config(folder: Path) -> None:
    (folder / "config.json").write_text("{ }")


def change_last_byte(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def rename_tensor(folder: Path) -> None:
    with_header(folder, lambda header: header.update({"e.weight": header.pop("a.weight")}))


@pytest.mark.parametrize("change", [change_config, change_last_byte, rename_tensor])
def test_fingerprint_of_changed_checkpoint_differs(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder = write_single(tmp_path / "m")
    before = Checkpoint.open(folder).fingerprint
    change(folder)
    assert Checkpoint.open(folder).fingerprint != before


def test_open_of_folder_with_pickled_weights_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(UnsafeCheckpointError, match="convert them to safetensors"):
        Checkpoint.open(tmp_path)


def test_open_of_index_that_names_pickled_file_is_refused(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "m", **{"a.weight": "one.bin"})
    with pytest.raises(UnsafeCheckpointError):
        Checkpoint.open(folder)


def test_open_of_folder_without_weights_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize("name", ["../m.safetensors", "/etc/passwd", "a/b.safetensors", 7])
def test_open_of_index_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_sharded(tmp_path / "m", **{"a.weight": name})
    with pytest.raises(CheckpointError, match="no file name"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', "[" * 100_000, "\xff"])
def test_open_of_broken_index_names_it(tmp_path: Path, text: str) -> None:
    folder = write_sharded(tmp_path / "m")
    (folder / INDEX).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=INDEX):
        Checkpoint.open(folder)


def test_open_with_missing_shard_names_it(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "m")
    (folder / "two.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"two\.safetensors is missing"):
        Checkpoint.open(folder)


def test_open_with_tensor_missing_from_its_shard_names_both(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "m", **{"e.weight": "one.safetensors"})
    with pytest.raises(CheckpointError, match=r"one\.safetensors lacks e\.weight"):
        Checkpoint.open(folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda h: h["a.weight"].update(shape=[2**40, 2**40]), "needs"),
        (lambda h: h["a.weight"].update(shape=[-3, -4]), "no whole number"),
        (lambda h: h["a.weight"].update(shape=[3.0, 4]), "no whole number"),
        (lambda h: h["a.weight"].update(shape=[1] * 1000), "1000 dimensions"),
        (lambda h: h["a.weight"].update(dtype="F3"), "unknown dtype"),
        (lambda h: h["a.weight"].update(data_offsets=[0]), "entry for a.weight is broken"),
        (lambda h: h.update({"a.weight": 5}), "entry for a.weight is broken"),
        (lambda h: h.update({"e.weight": h["a.weight"]}), "overlaps"),
        (lambda h: h.pop("d.weight"), "leaves a gap"),
        (lambda h: h.pop("b.weight"), "too long"),
        (
            lambda h: h.update(
                {"z": {"dtype": "U8", "shape": [2**40], "data_offsets": [200060, 200060 + 2**40]}}
            ),
            "truncated",
        ),
    ],
)
def test_open_of_lying_header_names_file_and_problem(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    folder = with_header(tmp_path / "m", change)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: .*{problem}"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("num_bytes", [2**63, 2**64 - 1, 100_000_001, 2**32])
def test_open_of_huge_header_length_is_refused(tmp_path: Path, num_bytes: int) -> None:
    file = write_single(tmp_path / "m") / "model.safetensors"
    file.write_bytes(num_bytes.to_bytes(8, "little") + file.read_bytes()[8:])
    with pytest.raises(CheckpointError, match="announces a header"):
        Checkpoint.open(file.parent)


@given(st.floats(0, 1, exclude_max=True))
@settings(max_examples=50, deadline=None)
def test_open_of_truncated_file_is_refused(
    tmp_path_factory: pytest.TempPathFactory, part: float
) -> None:
    file = write_single(tmp_path_factory.mktemp("m")) / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(part * len(content))])
    with pytest.raises(CheckpointError, match="truncated"):
        Checkpoint.open(file.parent)


@given(st.integers(0, 400), st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_open_of_corrupted_header_never_fails_otherwise(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    file = write_single(tmp_path_factory.mktemp("m")) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[position] = value
    file.write_bytes(content)
    try:
        tensors = Checkpoint.open(file.parent).tensors
    except CheckpointError:
        return
    assert sum(tensor.num_bytes for tensor in tensors.values()) < len(content)
