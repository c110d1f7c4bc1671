"""Meshes of real processes, shared by the tests and checked after each of them."""

from collections.abc import Iterator

import httpx
import pytest

from stagemesh import GenerationRequest, TokenIds
from tests.conftest import MESH_OPTIONS
from tests.integration.processes import Mesh, serving
from tests.integration.tiny_chat import TinyChat

# pp 1, 2 and 3, uneven.
SPLITS = ("5", "1,4", "2,1,2")
# The key/value cache of eight sequences that grow to 100 tokens does not fit.
PREEMPTING_OPTIONS = (
    *("--pp", "2", "--max-model-len", "144"),
    *("--kv-memory", "160KiB", "--max-step-tokens", "64"),
)


@pytest.fixture(scope="session", params=SPLITS, ids=lambda layers: f"layers={layers}")
def shared_mesh(request: pytest.FixtureRequest, tiny_chat: TinyChat) -> Iterator[Mesh]:
    """One mesh for each split, kept over the tests that use it."""
    folder = str(tiny_chat.model.folder)
    with serving(folder, "--layers", request.param, *MESH_OPTIONS) as mesh:
        yield mesh
        mesh.stop()


@pytest.fixture
def mesh(shared_mesh: Mesh) -> Iterator[Mesh]:
    """A mesh of every split in turn; idle after the test."""
    yield shared_mesh
    shared_mesh.assert_idle()


@pytest.fixture(scope="session")
def shared_preempting_pair(tiny_chat: TinyChat) -> Iterator[Mesh]:
    """A mesh of two stages whose cache is too small for what the tests send at once."""
    with serving(str(tiny_chat.model.folder), *PREEMPTING_OPTIONS) as mesh:
        yield mesh
        mesh.stop()


@pytest.fixture
def preempting_pair(shared_preempting_pair: Mesh) -> Iterator[Mesh]:
    """A mesh that preempts sequences during the test; idle after it.

    The scheduler predicts the lengths of answers from those that ended last. After short ones it
    admits more sequences than the cache holds.
    """
    short = GenerationRequest(prompts=(TokenIds((5,)),) * 64, max_tokens=1, ignore_eos=True)
    shared_preempting_pair.ask(short)
    before = num_preemptions(shared_preempting_pair)
    yield shared_preempting_pair
    assert num_preemptions(shared_preempting_pair) > before
    shared_preempting_pair.assert_idle()


def num_preemptions(mesh: Mesh) -> float:
    """The preemptions that the mesh's metrics count."""
    lines = httpx.get(f"http://{mesh.http}/metrics").text.splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if "preemptions_total" in line and not line.startswith("#")
    )
