"""Loading: reads only a stage's own bytes, converts them, and names a checkpoint's flaws."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from runtime.checkpoints.checkpoint import Checkpoint
from runtime.errors import CheckpointError
from stage_worker.execution.stage_runner import StageRunner
from stage_worker.model import weights
from stage_worker.model.weights import WeightReader
from tests.stage_worker.local_stages import make_spec
from tests.tiny_models import make_tiny_llama


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"), "untied_mha_bias").folder


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny_folder / name).read_bytes())
    return tmp_path


def rewrite(folder: Path, **changes: Tensor | None) -> None:
    tensors: dict[str, Tensor | None] = {**load_file(folder / "model.safetensors"), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


def no_progress(done: int, total: int) -> None:
    """A progress callback that does nothing."""


def make_reader(folder: Path, dtype: torch.dtype) -> WeightReader:
    return WeightReader(
        Checkpoint.open(folder),
        dtype=dtype,
        device=torch.device("cpu"),
        progress=no_progress,
    )


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16, torch.float16])
def test_weight_reader_any_float_dtype_converts_like_torch(
    folder: Path, stored: torch.dtype, wanted: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_BUFFER_BYTES", 64)
    expected = torch.randn(7, 13).to(stored)
    rewrite(folder, odd=expected)
    actual = make_reader(folder, wanted).read("odd", 7, 13)
    assert actual.dtype == wanted
    assert torch.equal(actual, expected.to(wanted))


@pytest.mark.parametrize(
    ("rows", "columns"),
    [((2, 5), (0, 13)), ((0, 7), (4, 9)), ((6, 7), (12, 13)), ((1, 7), (1, 13))],
)
@pytest.mark.parametrize("buffer_bytes", [16, 64, 4096])
def test_weight_reader_part_of_a_matrix_is_that_part_and_reads_no_more(
    folder: Path,
    rows: tuple[int, int],
    columns: tuple[int, int],
    buffer_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weights, "_BUFFER_BYTES", buffer_bytes)
    whole = torch.randn(7, 13)
    rewrite(folder, odd=whole)
    reader = make_reader(folder, torch.float32)
    expected = whole[slice(*rows), slice(*columns)]
    out = reader.empty(*expected.shape)
    reader.read_into("odd", out, (7, 13), (rows[0], columns[0]))
    assert torch.equal(out, expected)
    assert reader.read_bytes == 4 * expected.numel()


def test_weight_reader_that_measures_finds_a_flaw_and_reads_nothing(folder: Path) -> None:
    reader = WeightReader(
        Checkpoint.open(folder),
        dtype=torch.float32,
        device=torch.device("meta"),
        progress=no_progress,
    )
    (folder / "model.safetensors").write_bytes(b"")
    reader.read(NAME, 96, 64)
    assert reader.read_bytes == 4 * 96 * 64
    with pytest.raises(CheckpointError, match="expected shape"):
        reader.read(NAME, 96, 65)


NAME = "model.layers.1.self_attn.k_proj.weight"


def test_stage_load_missing_tensor_raises_naming_it(folder: Path) -> None:
    rewrite(folder, **{NAME: None})
    with pytest.raises(CheckpointError, match=NAME) as caught:
        StageRunner.load(Checkpoint.open(folder), make_spec(4), no_progress)
    assert "missing" in caught.value.problem


def test_stage_load_misshapen_tensor_raises_with_both_shapes(folder: Path) -> None:
    rewrite(folder, **{NAME: torch.zeros(95, 64)})
    with pytest.raises(CheckpointError) as caught:
        StageRunner.load(Checkpoint.open(folder), make_spec(4), no_progress)
    assert caught.value.problem == f"tensor {NAME}: expected shape [96, 64], found [95, 64]"


def test_stage_load_integer_tensor_raises(folder: Path) -> None:
    rewrite(folder, **{NAME: torch.zeros(96, 64, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match="found I8"):
        StageRunner.load(Checkpoint.open(folder), make_spec(4), no_progress)


def test_stage_load_flaw_in_another_stages_layer_is_ignored(folder: Path) -> None:
    rewrite(folder, **{NAME: None})
    stage = StageRunner.load(
        Checkpoint.open(folder), make_spec(2, first_layer=2, of=4), no_progress
    )
    assert stage.weights_bytes > 0


def test_weight_reader_file_truncated_after_opening_raises(folder: Path) -> None:
    reader = make_reader(folder, torch.float32)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"model\.safetensors ends within it"):
        reader.read(NAME, 96, 64)


def test_weight_reader_file_removed_after_opening_raises(folder: Path) -> None:
    reader = make_reader(folder, torch.float32)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        reader.read(NAME, 96, 64)


@pytest.mark.parametrize(("first_layer", "num_layers"), [(0, 4), (0, 1), (1, 2), (3, 1)])
@pytest.mark.parametrize("name", ["untied_mha_bias", "tied_gqa"])
def test_stage_load_progress_rises_to_the_bytes_of_its_part(
    name: str, first_layer: int, num_layers: int, tmp_path: Path
) -> None:
    folder = make_tiny_llama(tmp_path, name).folder
    calls: list[tuple[int, int]] = []
    stage = StageRunner.load(
        Checkpoint.open(folder),
        make_spec(num_layers, first_layer, of=4),
        lambda done, total: calls.append((done, total)),
    )
    done_bytes = [done for done, _ in calls]
    assert done_bytes == sorted(done_bytes)
    assert {total for _, total in calls} == {stage.weights_bytes}
    assert done_bytes[-1] == stage.weights_bytes
