"""One mesh of real processes for outside clients, clean after each test."""

from collections.abc import AsyncIterator, Iterator

import pytest
import torch
from openai import AsyncOpenAI, OpenAI

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


@pytest.fixture
def client(mesh: Mesh) -> Iterator[OpenAI]:
    """OpenAI's client, which does not try again by itself."""
    with OpenAI(base_url=f"http://{mesh.http}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(mesh: Mesh) -> AsyncIterator[AsyncOpenAI]:
    """The same on asyncio."""
    async with AsyncOpenAI(
        base_url=f"http://{mesh.http}/v1", api_key="none", max_retries=0
    ) as made:
        yield made
