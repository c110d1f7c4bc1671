"""`stagemesh bench serve` at both APIs of a coordinator with fake workers."""

from pathlib import Path
from typing import Any

import pytest

from coordinator.security.api_keys import Tenant, add_key
from runtime.errors import RequestsFailedError
from stagemesh.bench.session import LoadTest, report
from stagemesh.bench.statistics import summarize
from stagemesh.client.rpc_error import StagemeshRpcError
from tests.coordinator.toy_mesh import ToyMesh, toy_mesh

APIS = ("grpc", "http")
SETTINGS: dict[str, Any] = {
    "api_key": None,
    "tls_ca": None,
    "num_prompts": 20,
    "request_rate": 500.0,
    "burstiness": 0.5,
    "max_concurrency": 4,
    "num_warmups": 2,
    "input_len": 6,
    "output_len": 5,
    "prompts": None,
    "ignore_eos": True,
    "targets": {"e2el": 60_000.0},
    "seed": 1,
    "timeout_seconds": 30.0,
}


def load_test(mesh: ToyMesh, api: str, **changes: Any) -> LoadTest:
    target = mesh.addresses.grpc if api == "grpc" else mesh.addresses.http
    return LoadTest(api=api, target=target, **(SETTINGS | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("api", APIS)
async def test_load_test_counts_requests_without_warmups(api: str, toy_folder: Path) -> None:
    done: list[int] = []
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        load, result = await load_test(mesh, api).run(done.append)
    statistics = summarize(result, load.targets)
    assert (load.model, done[-1]) == ("toy", 20)
    assert (statistics.num_completed, statistics.num_failed) == (20, 0)
    assert (statistics.num_input_tokens, statistics.num_output_tokens) == (20 * 6, 20 * 5)
    assert statistics.goodput == pytest.approx(statistics.request_rate)
    assert all(record.ttft > 0 for record in result.records)


@pytest.mark.parametrize("api", APIS)
async def test_load_test_sends_prompts_of_a_file_as_text(
    api: str, toy_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "w5 w6 w7", "max_tokens": 2}\n')
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        _, result = await load_test(mesh, api, prompts=path, num_prompts=3).run(lambda done: None)
    assert [(each.num_input_tokens, each.num_output_tokens) for each in result.records] == [
        (3, 2)
    ] * 3


@pytest.mark.parametrize("api", APIS)
async def test_report_of_failed_requests_raises_with_the_apis_message(
    api: str, toy_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        load, result = await load_test(mesh, api, input_len=600, num_prompts=3).run(lambda _: None)
    with pytest.raises(RequestsFailedError, match=r"3 of 3 .*600 tokens"):
        report(load, result, None, None)
    assert "Failed requests:                         3\n" in capsys.readouterr().out


@pytest.mark.parametrize("api", APIS)
async def test_load_test_of_an_api_with_keys_needs_a_key(
    api: str, toy_folder: Path, tmp_path: Path
) -> None:
    key = add_key(tmp_path / "keys", Tenant("alice"))
    async with toy_mesh(toy_folder, api_keys=tmp_path / "keys") as mesh:
        await mesh.until_ready()
        with pytest.raises(StagemeshRpcError, match="no API key was sent"):
            await load_test(mesh, api).run(lambda _: None)
        _, result = await load_test(mesh, api, api_key=key, num_prompts=2).run(lambda _: None)
    assert [record.error for record in result.records] == ["", ""]
