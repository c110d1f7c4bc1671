"""Outside clients of the mesh that `tests/conftest.py` starts."""

from collections.abc import AsyncIterator, Iterator

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.integration.processes import Mesh


@pytest.fixture
def mesh(pair: Mesh) -> Mesh:
    """Two stages; idle after the test."""
    return pair


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
