"""Ten thousand random requests at each door; `make test-fuzz` runs it, other runs do not.

STAGEMESH_FUZZ_SEED makes it ask others.
"""

import os
from pathlib import Path

import pytest

from tests.coordinator.fuzz import fuzz_grpc, fuzz_http
from tests.coordinator.toy_mesh import toy_mesh

pytestmark = pytest.mark.timeout(600)

NUM_REQUESTS = 10_000
SEED = int(os.environ.get("STAGEMESH_FUZZ_SEED", "10"))


async def test_ten_thousand_random_bodies_never_fail(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        print(await fuzz_http(mesh, NUM_REQUESTS, SEED))  # noqa: T201 - shown by -s


async def test_ten_thousand_random_messages_never_fail(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        print(await fuzz_grpc(mesh, NUM_REQUESTS, SEED))  # noqa: T201 - shown by -s
