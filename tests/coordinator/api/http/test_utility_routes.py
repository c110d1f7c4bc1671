"""Probes, models, tokens, metrics and headers of the HTTP API."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.version import VERSION
from tests.coordinator.toy_mesh import ToyMesh, collect, read_one, token_request, toy_mesh
from tests.coordinator.toy_model import VOCAB_SIZE

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def until_status(client: httpx.AsyncClient, path: str, status: int) -> httpx.Response:
    """Repeats the request until the response has the status; the test's timeout bounds the wait."""
    while (response := await client.get(path)).status_code != status:
        pass
    return response


async def test_ready_follows_the_state_while_health_is_alive(toy_folder: Path) -> None:
    # vllm#11996, exo#1458, sglang#18421: green after the worker died.
    async with toy_mesh(toy_folder, num_workers=0) as mesh, mesh.http() as client:
        response = await client.get("/ready")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"]["code"] == "not_ready"
        for name in ("a", "b"):
            await mesh.add_worker(name)
        assert (await until_status(client, "/ready", 200)).json() == {"status": "ready"}
        await mesh.workers[1].kill()
        await until_status(client, "/ready", 503)
        assert (await client.get("/health")).json() == {"status": "alive"}


async def test_ready_while_stopping_is_false_and_running_requests_end(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        await mesh.until_ready()
        call = mesh.infer(token_request((5, 6, 7), max_tokens=300))
        await read_one(call, {})
        mesh.stop.set()
        while (response := await client.get("/ready")).status_code == 200:
            pass
        assert "stopping" in response.json()["error"]["message"]
        refused = await client.post("/v1/completions", json={"prompt": "w1"})
        assert refused.json()["error"]["code"] == "shutting_down"
        await collect(call)


async def test_models_lists_the_served_one_also_while_it_loads(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh, mesh.http() as client:
        [model] = (await client.get("/v1/models")).json()["data"]
        assert (model["id"], model["object"], model["owned_by"]) == ("toy", "model", "stagemesh")
        for name in ("a", "b"):
            await mesh.add_worker(name)
        await mesh.until_ready()
        [model] = (await client.get("/v1/models")).json()["data"]
        assert model["max_model_len"] == 512


async def test_tokenize_and_detokenize_are_each_others_inverse(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh, mesh.http() as client:
        answer = (await client.post("/tokenize", json={"prompt": "w5 w6", "model": "toy"})).json()
        assert answer == {"count": 2, "max_model_len": 512, "tokens": [5, 6]}
        messages = [{"role": "user", "content": "abc"}]
        answer = (await client.post("/tokenize", json={"messages": messages})).json()
        assert answer["tokens"] == [3, 1]
        answer = (await client.post("/detokenize", json={"tokens": [5, 6]})).json()
        assert answer == {"prompt": "w5 w6"}


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/tokenize", {}, "invalid_request"),
        ("/tokenize", {"prompt": "w1", "messages": []}, "invalid_request"),
        ("/tokenize", {"prompt": "w1", "model": "other"}, "unknown_model"),
        ("/tokenize", {"prompt": "w1", "extra": 1}, "unsupported_parameter"),
        ("/detokenize", {}, "invalid_request"),
        ("/detokenize", {"tokens": ["w1"]}, "invalid_request"),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, "token_out_of_vocabulary"),
        ("/detokenize", {"tokens": [-1]}, "token_out_of_vocabulary"),
    ],
)
async def test_tokens_of_a_bad_body_are_refused(
    path: str, body: dict[str, object], code: str, toy_folder: Path
) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh, mesh.http() as client:
        response = await client.post(path, json=body)
        assert response.json()["error"]["code"] == code


async def test_version_is_this_build(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh, mesh.http() as client:
        assert (await client.get("/version")).json()["version"] == VERSION


async def test_metrics_count_the_requests_of_both_apis(toy_folder: Path) -> None:
    body = {"prompt": [5], "max_tokens": 2, "temperature": 0}
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        await client.post("/v1/completions", json=body)
        await collect(mesh.infer(token_request((5,), max_tokens=3)))
        response = await client.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    [sample] = families["stagemesh_generated_tokens"].samples[:1]
    assert response.headers["content-type"].startswith("text/plain")
    assert sample.value == 5


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nowhere"])
async def test_request_id_and_traceparent_are_echoed_everywhere(
    path: str, toy_folder: Path
) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh, mesh.http() as client:
        sent = {"x-request-id": "mine-1", "traceparent": TRACEPARENT}
        response = await client.get(path, headers=sent)
        assert response.headers["x-request-id"] == "mine-1"
        assert response.headers["traceparent"] == TRACEPARENT
        assert "date" in response.headers
        other = await client.get(path, headers={"traceparent": "00-nonsense-01"})
        assert "traceparent" not in other.headers
        assert len(other.headers["x-request-id"]) == 32


async def test_state_shows_the_mesh_its_tokens_and_its_last_recovery(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        await mesh.until_ready()
        await collect(mesh.infer(token_request((5, 6, 7), max_tokens=4)))
        state = (await client.get("/state")).json()
        [replica] = state["replicas"]
        assert (state["ready"], state["mesh_address"]) == (True, mesh.mesh)
        assert (replica["num_prompt_tokens"], replica["num_generated_tokens"]) == ("3", "4")
        assert [stage["stage"] for stage in replica["stages"]] == [0, 1]
        assert state["recoveries"] == []
        await mesh.add_worker("c")
        await mesh.workers[1].kill()
        await mesh.until(lambda now: now.ready and len(now.recoveries) == 1)
        [recovery] = (await client.get("/state")).json()["recoveries"]
        assert (recovery["cause"], recovery["epoch"]) == ("worker_died", "1")
        assert recovery["seconds"] > 0


async def test_live_page_and_its_files_come_from_the_api_and_may_load_nothing_else(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh, mesh.http() as client:
        page = await client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        linked = re.findall(r'(?:href|src)="(live/[^"]+)"', page.text)
        assert {"live/main.js", "live/live.css", "live/icon.svg"} <= set(linked)
        imported = re.findall(r'from "\./([^"]+)"', (await client.get("/live/main.js")).text)
        for path in (*linked, *(f"live/{name}" for name in imported)):
            assert (await client.get(f"/{path}")).status_code == 200, path
        for path in ("/live/nothing.js", "/live/index.html", "/live/..%2Fapp.py"):
            assert (await client.get(path)).status_code == 404, path


async def test_metrics_count_ended_and_refused_requests_by_api(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        await mesh.until_ready()
        await collect(mesh.infer(token_request((5, 6, 7), max_tokens=4)))
        body = {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        refused = await client.post("/v1/completions", json={**body, "prompt": [10**6]})
        assert refused.status_code == 400
        assert (await client.get("/no/such/page")).status_code == 404
        families = text_string_to_metric_families((await client.get("/metrics")).text)
        samples = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }
    assert samples["stagemesh_requests_total", "grpc", "length"] == 1
    assert samples["stagemesh_requests_total", "http", "length"] == 1
    code = refused.json()["error"]["code"]
    assert samples["stagemesh_requests_rejected_total", "http", code] == 1
    assert samples["stagemesh_http_requests_total", "/v1/completions", "200"] == 1
    assert samples["stagemesh_http_requests_total", "/v1/completions", "400"] == 1
    assert samples["stagemesh_http_requests_total", "404", "other"] == 1
    assert samples["stagemesh_stage_up", "0", "1"] == 1
    assert samples["stagemesh_free_credits", "0"] > 0


async def test_cors_is_off_unless_an_origin_is_allowed(toy_folder: Path) -> None:
    asking = {"origin": "https://a.org", "access-control-request-method": "POST"}
    async with toy_mesh(toy_folder, num_workers=0) as mesh, mesh.http() as client:
        response = await client.get("/health", headers=asking)
        assert "access-control-allow-origin" not in response.headers
    async with (
        toy_mesh(toy_folder, num_workers=0, cors_origins=("https://a.org",)) as mesh,
        mesh.http() as client,
    ):
        preflight = await client.options("/v1/completions", headers=asking)
        refused = await client.get("/nowhere", headers=asking)
        stranger = await client.get("/health", headers={"origin": "https://b.org"})
    assert preflight.headers["access-control-allow-origin"] == "https://a.org"
    assert refused.headers["access-control-allow-origin"] == "https://a.org"
    assert "access-control-allow-origin" not in stranger.headers


async def test_probes_that_are_abandoned_leave_no_state(toy_folder: Path) -> None:
    """Case 8: sglang#35884, where probes that timed out piled up."""
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        before = await mesh.state()
        num_tasks = len(asyncio.all_tasks())
        for path in ("/health", "/ready", "/v1/models", "/version", "/metrics"):
            for _ in range(20):
                await _ask_and_leave(mesh, path)
        after = await mesh.until(lambda _: len(asyncio.all_tasks()) <= num_tasks)
        assert after.num_running + after.num_waiting == 0
        assert after.replicas[0].num_steps == before.replicas[0].num_steps


async def _ask_and_leave(mesh: ToyMesh, path: str) -> None:
    host, _, port = mesh.addresses.http.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    writer.close()
    await writer.wait_closed()
