"""Models of the Hub: downloads, progress reports, and errors without a network."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from runtime.checkpoints.model_store import resolve_model
from runtime.errors import ModelNotFoundError


def test_resolve_of_hub_id_fetches_no_pickled_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    reports: list[tuple[str, int, int]] = []

    def download(model: str, *, allow_patterns: list[str], tqdm_class: Any) -> str:
        assert model == "org/name"
        assert not any(pattern.endswith((".bin", ".pt", "*")) for pattern in allow_patterns)
        files = tqdm_class(total=3, desc="Fetching files")
        bar = tqdm_class(total=0, unit="B", name="huggingface_hub.snapshot_download", disable=None)
        bar.total = 100
        bar.refresh()
        bar.n = 60
        bar.refresh()
        bar.close()
        files.close()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    folder = resolve_model("org/name", progress=lambda *report: reports.append(report))
    assert folder == tmp_path
    assert ("downloading org/name", 60, 100) in reports
    assert {phase for phase, _, _ in reports} == {"downloading org/name"}


def test_resolve_of_hub_id_without_network_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def download(model: str, **options: Any) -> str:
        raise LocalEntryNotFoundError("Name or service not known\nmore")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelNotFoundError, match=r"not known.*check the name and the net"):
        resolve_model("org/name")
