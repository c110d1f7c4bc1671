"""Random bodies and messages at both APIs: an answer or one error, and no state is left."""

from pathlib import Path

import grpc

from tests.coordinator.api.fuzz import fuzz_grpc, fuzz_http
from tests.coordinator.toy_mesh import toy_mesh

NUM_REQUESTS = 600


async def test_random_bodies_are_answered_or_refused_and_never_fail(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        statuses = await fuzz_http(mesh, NUM_REQUESTS, seed=1)
    assert min(statuses[200], statuses[400]) > NUM_REQUESTS // 20


async def test_random_messages_are_answered_or_refused_and_never_fail(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        statuses = await fuzz_grpc(mesh, NUM_REQUESTS, seed=2)
    codes = grpc.StatusCode
    assert min(statuses[codes.OK], statuses[codes.INVALID_ARGUMENT]) > NUM_REQUESTS // 20
