"""One mesh of real processes for outside clients, clean after each test."""

from collections.abc import Iterator

import pytest
import torch

from tests.integration.processes import Mesh, serving
from tests.integration.tiny_chat import MODEL_NAME, TinyChat, make_tiny_chat


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> TinyChat:
    """The model that the mesh serves."""
    torch.set_num_threads(1)
    return make_tiny_chat(tmp_path_factory.mktemp("models") / MODEL_NAME)


@pytest.fixture(scope="session")
def _served(tiny_chat: TinyChat) -> Iterator[Mesh]:
    options = ("--pp", "2", "--kv-memory", "64MiB")
    with serving(str(tiny_chat.model.folder), *options) as mesh:
        yield mesh
        mesh.stop()


@pytest.fixture
def mesh(_served: Mesh) -> Iterator[Mesh]:
    """Two stages; after the test, nothing is left in it."""
    yield _served
    _served.assert_idle()
