"""API keys at both APIs: accepted and refused calls, and what needs no key."""

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator.security.api_keys import Tenant, add_key
from protos import inference_pb2, inference_pb2_grpc, mesh_pb2, mesh_pb2_grpc
from runtime.errors import KeyFileError, UnprotectedApiError
from tests.coordinator.key_file import Keys, bearer, metadata
from tests.coordinator.toy_mesh import collect, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROTECTED = (
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("POST", "/v1/embeddings"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/nothing"),
)
STATE = (("GET", "/metrics"), ("GET", "/sd"), ("GET", "/state"), ("GET", "/version"))
OPEN = (("GET", "/health"), ("GET", "/ready"), ("GET", "/"), ("GET", "/live/main.js"))


async def test_http_api_requires_a_key_except_for_probes(toy_folder: Path, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    async with (
        toy_mesh(toy_folder, api_keys=keys.path, protect_state=True, num_workers=0) as mesh,
        mesh.http() as client,
    ):
        mesh.metadata = metadata(keys.bob)
        for method, path in (*PROTECTED, *STATE):
            for headers in ({}, bearer("wrong"), {"authorization": f"Basic {keys.alice}"}):
                response = await client.request(method, path, headers=headers)
                error = response.json()["error"]
                assert response.status_code == 401, path
                assert response.headers["www-authenticate"] == "Bearer"
                assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
            response = await client.request(method, path, headers=bearer(keys.alice))
            assert response.status_code != 401, path
        for method, path in OPEN:
            assert (await client.request(method, path)).status_code in (200, 503)


async def test_state_is_open_unless_it_is_protected(toy_folder: Path, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    async with (
        toy_mesh(toy_folder, api_keys=keys.path, num_workers=0) as mesh,
        mesh.http() as client,
    ):
        for method, path in STATE:
            assert (await client.request(method, path)).status_code == 200
        assert (await mesh.state()).build


async def test_grpc_api_requires_a_key_except_for_probes_and_reflection(
    toy_folder: Path, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    async with toy_mesh(toy_folder, api_keys=keys.path, protect_state=True) as mesh:
        mesh.metadata = metadata(keys.bob)
        await mesh.until_ready()
        stub: Any = inference_pb2_grpc.InferenceStub(mesh.channel)
        operations: Any = mesh_pb2_grpc.OperationsStub(mesh.channel)
        for key in ((), metadata("wrong")):
            calls = (
                stub.Infer(token_request((5, 6, 7)), metadata=key).read(),
                stub.ListModels(inference_pb2.ListModelsRequest(), metadata=key),
                stub.Tokenize(inference_pb2.TokenizeRequest(), metadata=key),
                stub.Cancel(inference_pb2.CancelRequest(), metadata=key),
                operations.GetState(mesh_pb2.GetStateRequest(), metadata=key),
            )
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        call = stub.Infer(token_request((5, 6, 7)), metadata=metadata(keys.alice))
        assert (await collect(call))[0].tokens == toy_answer((5, 6, 7), 8)
        health: Any = health_pb2_grpc.HealthStub(mesh.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status


@pytest.mark.parametrize(
    "method", ["/", "/x", "//", "/stagemesh.v1.Inference/ListModels/", "/a/b/c/d"]
)
async def test_grpc_unknown_method_is_unimplemented(
    method: str, toy_folder: Path, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    async with toy_mesh(toy_folder, api_keys=keys.path, num_workers=0) as mesh:
        call: Any = mesh.channel.unary_unary(method)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_key_removed_or_added_takes_effect_without_a_restart(
    toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.security.api_keys._POLL_SECONDS", 0.01)
    keys = Keys(tmp_path)
    async with (
        toy_mesh(toy_folder, api_keys=keys.path, num_workers=0) as mesh,
        mesh.http() as client,
    ):
        carol = add_key(keys.path, Tenant("carol"))
        while (await client.get("/v1/models", headers=bearer(carol))).status_code == 401:
            pass
        keys.path.write_text("")
        while (await client.get("/v1/models", headers=bearer(carol))).status_code == 200:
            pass


async def test_neither_keys_nor_prompts_are_logged(toy_folder: Path, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    with structlog.testing.capture_logs() as events:
        async with toy_mesh(toy_folder, api_keys=keys.path) as mesh, mesh.http() as client:
            await mesh.until_ready()
            secret = {"prompt": "w5 w77", "stop": "w88", "max_tokens": 4}
            for key in (keys.alice, "sm-wrong"):
                await client.post("/v1/completions", json=secret, headers=bearer(key))
            bad = {**secret, "temperature": -1}
            await client.post("/v1/completions", json=bad, headers=bearer(keys.alice))
            with pytest.raises(grpc.aio.AioRpcError):
                await collect(mesh.infer(token_request((5,)), metadata=metadata("sm-wrong")))
    text = repr(events)
    assert "alice" in text
    assert "invalid_api_key" in text
    for private in (keys.alice, keys.bob, "sm-wrong", "w77", "w88"):
        assert private not in text


@pytest.mark.parametrize("api", [{"grpc": "0.0.0.0:0"}, {"http": "[::]:0"}, {"http": "box:0"}])
async def test_api_beyond_loopback_without_keys_is_refused(
    api: dict[str, Any], toy_folder: Path
) -> None:
    with pytest.raises(UnprotectedApiError, match="--allow-anonymous"):
        async with toy_mesh(toy_folder, num_workers=0, **api):
            pass


@pytest.mark.parametrize("is_told", ["keys", "aloud"])
async def test_api_beyond_loopback_listens_with_keys_or_allow_anonymous(
    is_told: str, toy_folder: Path, tmp_path: Path
) -> None:
    access = {"api_keys": Keys(tmp_path).path} if is_told == "keys" else {"allow_anonymous": True}
    async with toy_mesh(toy_folder, num_workers=0, http="0.0.0.0:0", **access) as mesh:
        assert mesh.addresses.http.startswith("0.0.0.0:")


async def test_coordinator_with_a_missing_key_file_does_not_start(
    toy_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyFileError):
        async with toy_mesh(toy_folder, num_workers=0, api_keys=tmp_path / "none"):
            pass
