"""Ten thousand random requests at each API, run by `make test-fuzz` and `.ci/run`.

STAGEMESH_FUZZ_SEED is the seed of the requests.
"""

import os
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.coordinator.api.fuzz import fuzz_grpc, fuzz_http
from tests.coordinator.toy_mesh import ToyMesh, toy_mesh

pytestmark = pytest.mark.timeout(600)

NUM_REQUESTS, NUM_AT_A_TIME = 10_000, 1_000
SEED = int(os.environ.get("STAGEMESH_FUZZ_SEED", "10"))

Fuzz = Callable[[ToyMesh, int, int], Coroutine[Any, Any, Counter[Any]]]


@pytest.mark.parametrize("fuzz", [fuzz_http, fuzz_grpc], ids=["http", "grpc"])
async def test_ten_thousand_random_requests_never_fail(
    fuzz: Fuzz, toy_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        for number in range(0, NUM_REQUESTS, NUM_AT_A_TIME):
            statuses = await fuzz(mesh, NUM_AT_A_TIME, SEED + number)
            summary = ", ".join(f"{getattr(key, 'name', key)}: {statuses[key]}" for key in statuses)
            with capsys.disabled():
                print(f"\n{number + NUM_AT_A_TIME} of {NUM_REQUESTS}: {summary}", end="")  # noqa: T201
