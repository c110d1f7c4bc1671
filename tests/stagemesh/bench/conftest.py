"""A toy model's folder and an own cache; schedulers are checked at the end of each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.coordinator.toy_model import make_toy_model
from tests.integrity import checked_schedulers


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that coordinators can serve."""
    return make_toy_model(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of canary references of one test."""
    monkeypatch.setenv("STAGEMESH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def integrity() -> Iterator[None]:
    """Checks every scheduler of the test for lost blocks and sequences."""
    with checked_schedulers():
        yield
