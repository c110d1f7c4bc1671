"""The process around the coordinator: health, reflection, listeners, the end."""

import asyncio
import traceback
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from coordinator.coordinator import Coordinator
from coordinator.options import CoordinatorOptions
from coordinator.server import INFERENCE_SERVICE, serve_coordinator
from coordinator.tokenization.model_info import ServedModel, load_served_model
from runtime.errors import PortTakenError, ShuttingDownError
from runtime.rpc.channels import error_from_rpc
from tests.coordinator.toy_mesh import Answer, ToyMesh, collect, read_one, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPT = (5, 6, 7)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
HealthCheckRequest = health_pb2.HealthCheckRequest


async def health_of(mesh: ToyMesh, service: str) -> int:
    """The status of a service in grpc.health.v1."""
    stub: Any = health_pb2_grpc.HealthStub(mesh.channel)
    response = await stub.Check(HealthCheckRequest(service=service))
    return int(response.status)


async def test_health_before_workers_is_alive_but_not_ready(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        await mesh.until(lambda state: state.phase.startswith("waiting"))
        assert await health_of(mesh, "") == SERVING
        assert await health_of(mesh, INFERENCE_SERVICE) == NOT_SERVING


async def test_health_watched_follows_a_worker_that_dies(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        stub: Any = health_pb2_grpc.HealthStub(mesh.channel)
        watch = stub.Watch(HealthCheckRequest(service=INFERENCE_SERVICE))
        while (await watch.read()).status != SERVING:
            pass
        await mesh.workers[1].kill()
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()


async def test_health_watched_follows_a_mesh_that_comes_breaks_and_is_repaired(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        stub: Any = health_pb2_grpc.HealthStub(mesh.channel)
        watch = stub.Watch(HealthCheckRequest(service=INFERENCE_SERVICE))
        seen = [(await watch.read()).status]
        for number in range(2):
            await mesh.add_worker(f"w{number}")
        seen.append((await watch.read()).status)
        await mesh.workers[0].kill()
        seen.append((await watch.read()).status)
        assert await health_of(mesh, "") == SERVING
        await mesh.add_worker("w2")
        seen.append((await watch.read()).status)
        watch.cancel()
    assert seen == [NOT_SERVING, SERVING, NOT_SERVING, SERVING]


async def test_health_while_running_requests_end_is_not_ready(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        mesh.workers[0].stage.behaviour.running.clear()
        reading = asyncio.create_task(collect(mesh.infer(token_request(PROMPT))))
        await mesh.until(lambda state: state.num_running == 1)
        stub: Any = health_pb2_grpc.HealthStub(mesh.channel)
        watch = stub.Watch(HealthCheckRequest(service=INFERENCE_SERVICE))
        assert (await watch.read()).status == SERVING
        mesh.stop.set()
        assert (await watch.read()).status == NOT_SERVING
        mesh.workers[0].stage.behaviour.running.set()
        assert (await reading)[0].tokens == toy_answer(PROMPT, 8)
        watch.cancel()
        await mesh.serving


async def test_health_probes_that_nobody_waits_for_leave_nothing_behind(toy_folder: Path) -> None:
    """Case 8: sglang#35884, where probes that timed out piled up."""
    async with toy_mesh(toy_folder) as mesh:
        before = await mesh.until_ready()
        stub: Any = health_pb2_grpc.HealthStub(mesh.channel)
        num_tasks = len(asyncio.all_tasks())
        for request in (HealthCheckRequest(), HealthCheckRequest(service=INFERENCE_SERVICE)):
            for probe in [*(stub.Check(request) for _ in range(20)), stub.Watch(request)]:
                probe.cancel()
            watches = [stub.Watch(request) for _ in range(20)]
            for watch in watches:
                await watch.read()
                watch.cancel()
        after = await mesh.until(lambda _: len(asyncio.all_tasks()) <= num_tasks)
        assert after.replicas[0].num_steps == before.replicas[0].num_steps
        assert await health_of(mesh, INFERENCE_SERVICE) == SERVING


async def test_health_of_an_unknown_service_is_not_found(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_of(mesh, "stagemesh.v1.Nothing")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_the_services(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        make_stub: Any = reflection_pb2_grpc.ServerReflectionStub
        call = make_stub(mesh.channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        services = (await call.read()).list_services_response.service
        await call.done_writing()
    assert {"stagemesh.v1.Inference", "stagemesh.v1.Operations"} <= {s.name for s in services}


async def test_stop_while_running_lets_requests_finish_and_refuses_new_ones(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder) as mesh:
        answers: dict[int, Answer] = {}
        call = mesh.infer(token_request(PROMPT, max_tokens=200))
        await read_one(call, answers)
        mesh.stop.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(mesh.infer(token_request(PROMPT)))
        assert error_from_rpc(caught.value)[0] == "shutting_down"
        await collect(call, answers)
        await mesh.serving
    assert answers[0].tokens == toy_answer(PROMPT, 200)


async def test_stop_past_the_grace_ends_requests_with_an_error(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, grace_seconds=0.05) as mesh:
        await mesh.until_ready()
        mesh.workers[0].stage.behaviour.running.clear()
        reading = asyncio.create_task(collect(mesh.infer(token_request(PROMPT))))
        await mesh.until(lambda state: state.num_running == 1)
        mesh.stop.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reading
        assert error_from_rpc(caught.value)[0] == "shutting_down"
        await mesh.serving
        mesh.workers[0].stage.behaviour.running.set()


@pytest.mark.parametrize("listener", ["grpc", "mesh"])
async def test_start_on_a_taken_port_raises_and_leaves_nothing(
    toy_folder: Path, listener: str
) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        addresses = {"grpc": "127.0.0.1:0", "mesh": "127.0.0.1:0", listener: mesh.api}
        options = CoordinatorOptions(
            model=str(toy_folder), grpc=addresses["grpc"], mesh=addresses["mesh"]
        )
        with pytest.raises(PortTakenError, match=mesh.api.rpartition(":")[2]):
            await serve_coordinator(options, asyncio.Event())


async def test_start_with_an_unknown_model_says_so_in_the_state(tmp_path: Path) -> None:
    async with toy_mesh(tmp_path / "nothing", num_workers=0) as mesh:
        state = await mesh.until(lambda state: bool(state.failure))
        assert "not found" in state.failure
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(mesh.infer(token_request(PROMPT)))
        assert error_from_rpc(caught.value)[0] == "not_ready"


async def test_stop_while_the_model_loads_ends_cleanly(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = await load_served_model(str(toy_folder), lambda *_: None)
    loaded = asyncio.Event()

    async def load_during_the_stop(*_: object) -> ServedModel:
        await loaded.wait()
        return model

    monkeypatch.setattr("coordinator.coordinator.load_served_model", load_during_the_stop)
    coordinator = Coordinator(CoordinatorOptions(model=str(toy_folder)))
    running = asyncio.create_task(coordinator.run())
    await coordinator.drain()
    loaded.set()
    await running
    assert coordinator.replicas == ()


async def test_refused_requests_leave_no_traceback_behind(toy_folder: Path) -> None:
    router = Coordinator(CoordinatorOptions(model=str(toy_folder))).router
    router.refuse(error := ShuttingDownError())
    depths = []
    for _ in range(3):
        with pytest.raises(ShuttingDownError):
            router.check_accepts([])
        depths.append(len(traceback.extract_tb(error.__traceback__)))
    assert depths[0] == depths[2]
