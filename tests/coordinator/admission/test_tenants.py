"""What the requests of one API key may do, and what they may not do to another's."""

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from protos import inference_pb2, inference_pb2_grpc
from tests.coordinator.key_file import BODY, Keys, bearer, metadata
from tests.coordinator.toy_mesh import ToyMesh, collect, token_request, toy_mesh


async def error_at(client: httpx.AsyncClient, **options: Any) -> tuple[int, str, httpx.Headers]:
    response = await client.post("/v1/completions", json=BODY, **options)
    return response.status_code, response.json()["error"]["code"], response.headers


async def test_requests_in_flight_are_limited_for_each_key_on_both_apis(
    toy_folder: Path, tmp_path: Path
) -> None:
    keys = Keys(tmp_path, max_in_flight=1)
    async with (
        toy_mesh(toy_folder, api_keys=keys.path, num_workers=0) as mesh,
        mesh.http() as client,
    ):
        await mesh.until(lambda state: state.phase.startswith("waiting"))
        first = mesh.infer(token_request((5, 6, 7)), metadata=metadata(keys.alice))
        await mesh.until(lambda state: state.num_waiting == 1)
        status, code, headers = await error_at(client, headers=bearer(keys.alice))
        assert (status, code, headers["retry-after"]) == (429, "too_many_in_flight", "1")
        error = await refused(mesh, keys.alice)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        other = mesh.infer(token_request((5, 6, 7)), metadata=metadata(keys.bob))
        await mesh.until(lambda state: state.num_waiting == 2)
        other.cancel()
        first.cancel()
        await mesh.until(lambda state: state.num_waiting == 0)


async def refused(mesh: ToyMesh, key: str) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(mesh.infer(token_request((5, 6, 7)), metadata=metadata(key)))
    return caught.value


async def test_tokens_a_minute_are_limited_for_each_key_with_the_time_to_wait(
    toy_folder: Path, tmp_path: Path
) -> None:
    keys = Keys(tmp_path, tokens_per_minute=6)
    async with (
        toy_mesh(toy_folder, api_keys=keys.path) as mesh,
        mesh.http() as client,
    ):
        await mesh.until_ready()
        first = await client.post("/v1/completions", json=BODY, headers=bearer(keys.alice))
        assert first.json()["usage"]["total_tokens"] == 7
        status, code, headers = await error_at(client, headers=bearer(keys.alice))
        assert (status, code) == (429, "token_rate_exceeded")
        assert 1 <= int(headers["retry-after"]) <= 10
        error = await refused(mesh, keys.alice)
        trailer = dict(error.trailing_metadata() or ())
        details = Status.FromString(bytes(trailer["grpc-status-details-bin"])).details
        retry = RetryInfo()
        assert any(detail.Unpack(retry) for detail in details)
        assert 1 <= retry.retry_delay.seconds <= 10
        answer = await client.post("/v1/completions", json=BODY, headers=bearer(keys.bob))
        assert answer.status_code == 200


async def test_request_of_one_key_cannot_be_cancelled_with_another(
    toy_folder: Path, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    async with toy_mesh(toy_folder, api_keys=keys.path, num_workers=0) as mesh:
        await mesh.until(lambda state: state.phase.startswith("waiting"))
        request = token_request((5, 6, 7))
        request.request_id = "mine"
        call = mesh.infer(request, metadata=metadata(keys.alice))
        await mesh.until(lambda state: state.num_waiting == 1)
        stub: Any = inference_pb2_grpc.InferenceStub(mesh.channel)
        cancel = inference_pb2.CancelRequest(request_id="mine")
        nobodys = await stub.Cancel(cancel, metadata=metadata(keys.bob))
        mine = await stub.Cancel(cancel, metadata=metadata(keys.alice))
        assert (nobodys.num_cancelled, mine.num_cancelled) == (0, 1)
        assert await call.code() is grpc.StatusCode.CANCELLED
