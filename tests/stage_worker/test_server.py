"""The worker's life cycle in this process: bind, join, serve, stop; and fatal errors."""

import asyncio
import urllib.request
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos import mesh_pb2, mesh_pb2_grpc, stage_pb2, stage_pb2_grpc
from runtime.errors import InvalidRequestError, PortTakenError, WorkerRefusedError, find_error
from runtime.rpc import channels
from runtime.version import PROTOCOL_VERSION
from stage_worker import server as worker_server
from stage_worker.collectives import shared_file
from stage_worker.server import WorkerOptions, serve_worker
from stage_worker.service import STAGE_SERVICE, WorkerHealth

WAIT_SECONDS = 20.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class _Mesh(mesh_pb2_grpc.MeshServicer):
    def __init__(self, answer: mesh_pb2.CoordinatorMessage) -> None:
        self.hellos: asyncio.Queue[mesh_pb2.Hello] = asyncio.Queue()
        self._answer = answer

    async def Join(  # type: ignore[override]  # noqa: N802
        self, _: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        self.hellos.put_nowait((await context.read()).hello)
        await context.write(self._answer)
        await context.read()


async def _start(mesh: _Mesh) -> tuple[grpc.aio.Server, str]:
    server = channels.make_server()
    mesh_pb2_grpc.add_MeshServicer_to_server(mesh, server)
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    return server, address


async def _health_of(channel: grpc.aio.Channel, service: str) -> int:
    """The grpc.health.v1 status of a service."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    response = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(response.status)


def _read_metrics(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        text: bytes = response.read()
    return text.decode()


def _names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def _until_serving(channel: grpc.aio.Channel, service: str) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=service))
    while (await watch.read()).status != SERVING:
        pass
    watch.cancel()


WELCOME = mesh_pb2.CoordinatorMessage(welcome=mesh_pb2.Welcome(heartbeat_seconds=5.0))
REFUSAL = mesh_pb2.CoordinatorMessage(refusal=mesh_pb2.Refusal(reason="too old"))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:0"])
async def test_serve_worker_joins_serves_its_address_and_stops(listen: str) -> None:
    mesh = _Mesh(WELCOME)
    coordinator, address = await _start(mesh)
    stop = asyncio.Event()
    options = WorkerOptions(address, listen, device="cpu", is_mesh_insecure=True)
    async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(serve_worker(options, stop))
        hello = await mesh.hellos.get()

        assert hello.protocol_version == PROTOCOL_VERSION
        assert hello.device.kind == "cpu"
        assert hello.device.memory_bytes > 0
        assert hello.address.startswith("127.0.0.1:")
        async with channels.dial(hello.address) as channel:
            stub = stage_pb2_grpc.StageStub(channel)
            status = await stub.Status(stage_pb2.StatusRequest())
            assert status.worker_id == hello.worker_id
            assert status.state == stage_pb2.WORKER_STATE_EMPTY
            await _until_serving(channel, STAGE_SERVICE)
        metrics = await asyncio.to_thread(_read_metrics, hello.metrics_address)
        assert "stagemesh_worker_joined 1.0" in metrics
        assert 'stagemesh_worker_state{state="empty"} 1.0' in metrics
        assert 'stagemesh_worker_kv_blocks{state="free"} 0.0' in metrics
        stop.set()
    await coordinator.stop(grace=None)


async def test_serve_worker_removes_files_of_killed_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_file, "_folder", lambda: tmp_path)
    shared_file.map_file(shared_file.segment_path("left"), 4096).close()
    assert _names_in(tmp_path) == [shared_file.segment_path("left").name]
    mesh = _Mesh(WELCOME)
    coordinator, address = await _start(mesh)
    stop = asyncio.Event()
    async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(serve_worker(WorkerOptions(address, device="cpu"), stop))
        await mesh.hellos.get()
        assert _names_in(tmp_path) == []
        stop.set()
    await coordinator.stop(grace=None)


async def test_health_of_a_worker_that_has_not_joined_is_alive_but_not_ready() -> None:
    health, server = WorkerHealth(), channels.make_server()
    await health.add_to(server)
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    async with channels.dial(address) as channel:
        assert await _health_of(channel, "") == SERVING
        assert await _health_of(channel, STAGE_SERVICE) == NOT_SERVING
    await server.stop(grace=None)


async def test_serve_worker_refused_raises_the_reason() -> None:
    coordinator, address = await _start(_Mesh(REFUSAL))

    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(ExceptionGroup) as caught:
            await serve_worker(WorkerOptions(coordinator=address), asyncio.Event())

    error = find_error(caught.value)
    assert isinstance(error, WorkerRefusedError)
    assert error.reason == "too old"
    await coordinator.stop(grace=None)


async def test_serve_worker_port_taken_raises_its_address() -> None:
    taken = channels.make_server()
    address = await channels.bind(taken, "127.0.0.1:0")
    await taken.start()

    with pytest.raises(ExceptionGroup) as caught:
        await serve_worker(WorkerOptions(coordinator=address, listen=address), asyncio.Event())

    error = find_error(caught.value)
    assert isinstance(error, PortTakenError)
    assert error.address == address
    await taken.stop(grace=None)


def test_run_worker_failure_is_raised_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> None:
        async with asyncio.TaskGroup():
            raise WorkerRefusedError(worker="w", reason="too old")

    monkeypatch.setattr(worker_server, "serve_worker", refused)

    with pytest.raises(WorkerRefusedError):
        worker_server.run_worker(WorkerOptions(coordinator="127.0.0.1:1"))


async def test_serve_worker_missing_device_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(InvalidRequestError, match="no CUDA device"):
        await serve_worker(WorkerOptions(coordinator="127.0.0.1:1", device="cuda"), asyncio.Event())
