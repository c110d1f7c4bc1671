"""The reference log-probabilities, computed layer by layer, are the model's own."""

from pathlib import Path

import pytest

from runtime.checkpoints.checkpoint import Checkpoint
from runtime.errors import CheckpointError
from stage_worker.loading.reference_logprobs import reference_logprobs
from tests.tiny_models import make_tiny_llama

PROMPT = (1, 17, 300, 5, 5, 42)


@pytest.mark.parametrize("name", ["llama3_gqa", "tied_gqa"])
def test_reference_logprobs_match_transformers(name: str, tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path, name)
    layers_done: list[tuple[int, int]] = []
    top_ids, top_logprobs = reference_logprobs(
        Checkpoint.open(model.folder),
        PROMPT,
        10,
        lambda done, total: layers_done.append((done, total)),
    )
    expected = model.logprobs(PROMPT)[-1].topk(10)
    assert top_ids == tuple(expected.indices.tolist())
    assert top_logprobs == pytest.approx(expected.values.tolist(), abs=1e-4)
    assert layers_done == [(done + 1, model.num_layers) for done in range(model.num_layers)]


def test_reference_logprobs_broken_checkpoint_raises(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, "tied_gqa").folder
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError):
        reference_logprobs(Checkpoint.open(folder), PROMPT, 10, lambda done, total: None)
