"""Meshes of real processes, shared by the tests and checked after each of them."""

from collections.abc import Iterator

import pytest
import torch

from tests.integration.processes import Mesh, serving
from tests.integration.tiny_chat import MODEL_NAME, TinyChat, make_tiny_chat

# pp 1, 2 and 3, uneven; a step of at most 64 tokens cuts longer prompts into chunks.
SPLITS = ("5", "1,4", "2,1,2")
OPTIONS = ("--max-step-tokens", "64", "--kv-memory", "64MiB")


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> TinyChat:
    """The model that the meshes of `mesh` serve."""
    torch.set_num_threads(1)
    return make_tiny_chat(tmp_path_factory.mktemp("models") / MODEL_NAME)


@pytest.fixture(scope="session", params=SPLITS, ids=lambda layers: f"layers={layers}")
def shared_mesh(request: pytest.FixtureRequest, tiny_chat: TinyChat) -> Iterator[Mesh]:
    """One mesh for each split, kept over the tests that use it."""
    folder = str(tiny_chat.model.folder)
    with serving(folder, "--layers", request.param, *OPTIONS) as mesh:
        yield mesh
        mesh.stop()


@pytest.fixture
def mesh(shared_mesh: Mesh) -> Iterator[Mesh]:
    """A mesh of every split in turn; after the test, nothing is left in it."""
    yield shared_mesh
    shared_mesh.assert_idle()


@pytest.fixture(scope="module")
def _pair(tiny_chat: TinyChat) -> Iterator[Mesh]:
    with serving(str(tiny_chat.model.folder), "--pp", "2", *OPTIONS) as mesh:
        yield mesh
        mesh.stop()


@pytest.fixture
def pair(_pair: Mesh) -> Iterator[Mesh]:
    """A mesh of two stages, for what does not depend on the split; clean after the test."""
    yield _pair
    _pair.assert_idle()
