"""The worker process: listens, joins the mesh, serves until it is stopped, and cleans up.

`run_worker` raises a StagemeshError if the process cannot go on: its port is taken, its device does
not exist, its model cannot be served, or the coordinator refuses the worker.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial

import torch
from prometheus_client import CollectorRegistry

from protos import mesh_pb2
from runtime.errors import DeviceStuckError, InvalidRequestError, find_error
from runtime.host.devices import DeviceProbe, make_probe
from runtime.host.logs import get_logger
from runtime.host.process import run
from runtime.metrics.declarations import WorkerMetrics
from runtime.metrics.loop_lag import observe_loop_lag
from runtime.metrics.metrics_server import serve_metrics
from runtime.protocol.device_codec import usage_to_proto
from runtime.rpc import channels, peer_authorization
from runtime.rpc.call_metrics import count_calls
from runtime.rpc.tls import DialPolicy, MeshTls, check_mesh_address
from stage_worker.collectives.shared_file import remove_stale_files
from stage_worker.device.device_info import device_uuid
from stage_worker.device.device_thread import DeviceThread
from stage_worker.execution.simulated_stage import SIMULATED_DEVICE, StepTimeModel
from stage_worker.loading.loading import WorkerDevice, check_model_path
from stage_worker.mesh.hello import HelloFactory
from stage_worker.mesh.mesh_client import LeaveRequest, maintain_membership
from stage_worker.service import StageService, WorkerHealth
from stage_worker.worker import Worker
from stage_worker.worker_metrics import count_activity, expose, expose_device

# Differs from the exit code of a refused start: a restart may succeed.
EXIT_STUCK = 4

_NO_CUDA = "this machine has no CUDA device; leave it at auto, or choose cpu"
_CLOSE_SECONDS = 2.0

_log = get_logger()


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The settings of one worker process; `device` is `auto`, `cpu` or `cuda`.

    `listen` is the address for other stages and `metrics` the one for Prometheus; port 0 selects a
    free port. `advertise` replaces `listen` as the address that the worker reports. `model_path`
    replaces the model that the coordinator names. `grace_seconds` limits how long a stopping worker
    waits to be released. With `step_times` the worker simulates its stage. Without `mesh_tls`,
    `listen` must be on loopback unless `is_mesh_insecure`. `exit_with_parent` stops the process
    when standard input ends.
    """

    coordinator: str
    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    metrics: str = "127.0.0.1:0"
    model_path: str | None = None
    device: str = "auto"
    num_threads: int = 1
    device_sharers: int = 1
    step_times: StepTimeModel | None = None
    mesh_tls: MeshTls | None = None
    is_mesh_insecure: bool = False
    grace_seconds: float = 10.0
    exit_with_parent: bool = False


def run_worker(options: WorkerOptions) -> None:
    """Serves until SIGTERM, SIGINT or the parent's end; raises the error that ends the process.

    If the device is stuck, the process exits with `EXIT_STUCK`, because its thread cannot be ended.
    """
    try:
        run(partial(serve_worker, options), exit_with_parent=options.exit_with_parent)
    except ExceptionGroup as group:
        error = find_error(group) or group
        if isinstance(error, DeviceStuckError):
            _log.error(error.code, message=str(error))
            os._exit(EXIT_STUCK)
        raise error from None


async def serve_worker(options: WorkerOptions, stop: asyncio.Event) -> None:
    """Serves on the running event loop until `stop` is set or the mesh refuses the worker."""
    await _check_options(options)
    remove_stale_files()
    device = _make_device(options)
    worker_id = str(uuid.uuid4())
    metrics, health = WorkerMetrics(CollectorRegistry()), WorkerHealth()
    device_probe = make_probe(device.kind, device_uuid(device.kind))
    with closing(DeviceThread(device.num_threads)) as thread:
        async with (
            serve_metrics(options.metrics, metrics.registry) as metrics_address,
            asyncio.TaskGroup() as tasks,
        ):
            on_activity = partial(count_activity, metrics)
            dial_policy = DialPolicy(options.mesh_tls, options.is_mesh_insecure)
            worker = Worker(worker_id, device, thread, tasks, dial_policy, on_activity)
            expose(metrics, worker, health)
            expose_device(metrics, device_probe)
            async with _listening(options, worker, metrics, health) as address:
                hello_factory = HelloFactory(
                    options.coordinator,
                    worker_id,
                    device.kind,
                    options.advertise or address,
                    metrics_address,
                    worker.held,
                )
                lag = tasks.create_task(observe_loop_lag(metrics.event_loop_lag))
                await _run_membership(
                    hello_factory,
                    health,
                    partial(_heartbeat, device_probe, worker),
                    options.mesh_tls,
                    stop,
                    options.grace_seconds,
                )
                lag.cancel()
    _log.info("stopped", worker_id=worker_id)


def _heartbeat(device_probe: DeviceProbe, worker: Worker) -> mesh_pb2.Heartbeat:
    """The device's usage and the rank's activity."""
    return mesh_pb2.Heartbeat(usage=usage_to_proto(device_probe()), activity=worker.activity())


async def _check_options(options: WorkerOptions) -> None:
    """Validates the options before any resource is allocated."""
    check_mesh_address(options.listen, "--listen", options.mesh_tls, options.is_mesh_insecure)
    if options.model_path is not None:
        await asyncio.to_thread(check_model_path, options.model_path)


@asynccontextmanager
async def _listening(
    options: WorkerOptions, worker: Worker, metrics: WorkerMetrics, health: WorkerHealth
) -> AsyncIterator[str]:
    """Serves the worker; yields the bound address and closes the worker at the end."""
    server = channels.make_server(
        count_call=count_calls(metrics), check=peer_authorization.authorize, is_bulk=True
    )
    StageService(worker).add_to(server)
    await health.add_to(server)
    address = await channels.bind(server, options.listen, options.mesh_tls)
    await server.start()
    try:
        yield address
    finally:
        await worker.close()
        await server.stop(_CLOSE_SECONDS)


async def _run_membership(
    hello_factory: HelloFactory,
    health: WorkerHealth,
    make_heartbeat: Callable[[], mesh_pb2.Heartbeat],
    tls: MeshTls | None,
    stop: asyncio.Event,
    grace_seconds: float,
) -> None:
    """Stays joined until the mesh releases the worker, or `stop` is set and the grace time ends."""
    leave_request = LeaveRequest(asyncio.Event(), grace_seconds)
    async with asyncio.TaskGroup() as tasks:
        membership = tasks.create_task(
            maintain_membership(
                hello_factory.coordinator,
                hello_factory.hello,
                health.set_joined,
                leave_request,
                make_heartbeat,
                tls,
            )
        )
        stopping = tasks.create_task(stop.wait())
        await asyncio.wait((membership, stopping), return_when=asyncio.FIRST_COMPLETED)
        if health.is_joined:
            leave_request.requested.set()
            await asyncio.wait((membership,), timeout=grace_seconds)
        membership.cancel()
        stopping.cancel()


def _make_device(options: WorkerOptions) -> WorkerDevice:
    kind = SIMULATED_DEVICE if options.step_times else _choose_device(options.device)
    return WorkerDevice(
        kind, options.num_threads, options.model_path, options.step_times, options.device_sharers
    )


def _choose_device(requested: str) -> str:
    has_cuda = torch.cuda.is_available()
    if requested == "auto":
        return "cuda" if has_cuda else "cpu"
    if requested == "cuda" and not has_cuda:
        raise InvalidRequestError(field="--device", problem=_NO_CUDA)
    return requested
