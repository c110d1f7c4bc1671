"""Runs the coordinator process: three listeners, health, start and stop.

The APIs (gRPC and HTTP, for clients) and the mesh (workers and operators) listen apart, so that
each can have its own network and keys. All of them run on one event loop.
"""

import asyncio
from contextlib import suppress
from dataclasses import asdict, dataclass

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from coordinator.activity_log import log_summaries
from coordinator.api.grpc.inference_service import InferenceService
from coordinator.api.grpc.mesh_service import MeshService
from coordinator.api.grpc.message_size_limit import MessageSizeLimit
from coordinator.api.grpc.operations_service import OperationsService
from coordinator.api.http.app import make_app
from coordinator.api.http.server import HttpServer
from coordinator.coordinator import Coordinator
from coordinator.options import CoordinatorOptions
from coordinator.security.authentication import GrpcAuthentication
from coordinator.security.listen_policy import check_listen_addresses
from protos import inference_pb2, inference_pb2_grpc, mesh_pb2, mesh_pb2_grpc
from runtime.host import process
from runtime.host.logs import get_logger
from runtime.metrics.loop_lag import observe_loop_lag
from runtime.rpc import channels, peer_authorization
from runtime.rpc.call_metrics import count_calls
from runtime.rpc.tls import DialPolicy
from runtime.version import BUILD

__all__ = ["Addresses", "CoordinatorOptions", "run_coordinator", "serve_coordinator"]

# Its health reports whether requests are served; that of the empty name, whether the process runs.
INFERENCE_SERVICE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
OPERATIONS_SERVICE = mesh_pb2.DESCRIPTOR.services_by_name["Operations"].full_name

# Calls have ended by then; this is the time for data on its way to the socket.
_CLOSE_SECONDS = 2

_log = get_logger()


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a coordinator listens, each as HOST:PORT."""

    grpc: str
    http: str
    mesh: str


def run_coordinator(options: CoordinatorOptions) -> None:
    """Serves until SIGINT, SIGTERM or, with `exit_with_parent`, the parent's end.

    Raises `PortTakenError`, `UnprotectedApiError` or `KeyFileError` at once. `GetState` reports a
    model that cannot be served, because the launcher asks there.
    """
    process.tune_gc()
    process.run(
        lambda stop: serve_coordinator(options, stop), exit_with_parent=options.exit_with_parent
    )


async def serve_coordinator(
    options: CoordinatorOptions,
    stop: asyncio.Event,
    started: asyncio.Future[Addresses] | None = None,
) -> None:
    """Serves until `stop` is set; `started` gets the bound addresses."""
    check_listen_addresses(options)
    coordinator = Coordinator(options)
    mesh_service = _make_mesh_service(coordinator)
    health_servicer = health.aio.HealthServicer()
    api = _make_api(coordinator, health_servicer)
    http = HttpServer(make_app(coordinator), _CLOSE_SECONDS, options.api_tls)
    mesh = channels.make_server(
        count_call=count_calls(coordinator.metrics), check=peer_authorization.authorize
    )
    mesh_pb2_grpc.add_MeshServicer_to_server(mesh_service, mesh)
    _add_operations(mesh, coordinator, health_servicer, may_drain=True)
    try:
        addresses = Addresses(
            await channels.bind(api, options.grpc, options.api_tls),
            await http.bind(options.http),
            await channels.bind(mesh, options.mesh, options.mesh_tls),
        )
        coordinator.mesh_address = addresses.mesh
        await api.start()
        await http.start()
        await mesh.start()
        _log.info("coordinator_listening", build=BUILD, **asdict(addresses))
        if started is not None:
            started.set_result(addresses)
        await _run_until(stop, coordinator, health_servicer, http, api)
    finally:
        mesh_service.close()
        await http.stop()
        await api.stop(0)
        await mesh.stop(_CLOSE_SECONDS)
        _log.info("coordinator_stopped")


async def _run_until(
    stop: asyncio.Event,
    coordinator: Coordinator,
    health_servicer: health.aio.HealthServicer,
    http: HttpServer,
    api: grpc.aio.Server,
) -> None:
    """Serves until `stop` is set; then drains and closes both APIs before the replica goes."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(coordinator.run())
        health_task = tasks.create_task(_publish_health(coordinator, health_servicer))
        lag_task = tasks.create_task(observe_loop_lag(coordinator.metrics.event_loop_lag))
        keys_task = tasks.create_task(coordinator.keys.watch())
        summary_task = tasks.create_task(log_summaries(coordinator))
        await stop.wait()
        health_task.cancel()
        await _drain(coordinator, health_servicer)
        await http.stop()
        await api.stop(_CLOSE_SECONDS)
        running.cancel()
        lag_task.cancel()
        keys_task.cancel()
        summary_task.cancel()


async def _drain(coordinator: Coordinator, health_servicer: health.aio.HealthServicer) -> None:
    """Reports not serving, then waits for running requests to end."""
    with suppress(TimeoutError):  # a watcher that does not read holds it up
        async with asyncio.timeout(_CLOSE_SECONDS):
            await health_servicer.enter_graceful_shutdown()
    await coordinator.drain()


def _make_api(
    coordinator: Coordinator, health_servicer: health.aio.HealthServicer
) -> grpc.aio.Server:
    options = coordinator.options
    api = channels.make_server(
        GrpcAuthentication(coordinator.keys, options.protect_state),
        MessageSizeLimit(options.max_request_bytes),
        count_call=count_calls(coordinator.metrics),
    )
    inference_pb2_grpc.add_InferenceServicer_to_server(InferenceService(coordinator.admission), api)
    _add_operations(api, coordinator, health_servicer, may_drain=False)
    names = (INFERENCE_SERVICE, OPERATIONS_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, api)
    return api


def _make_mesh_service(coordinator: Coordinator) -> MeshService:
    options = coordinator.options
    return MeshService(
        coordinator.membership,
        coordinator.coordinator_id,
        options.heartbeat_seconds,
        options.heartbeat_timeout_seconds,
        DialPolicy(options.mesh_tls, options.is_mesh_insecure),
    )


def _add_operations(
    server: grpc.aio.Server,
    coordinator: Coordinator,
    health_servicer: health.aio.HealthServicer,
    *,
    may_drain: bool,
) -> None:
    operations = OperationsService(coordinator, may_drain=may_drain)
    mesh_pb2_grpc.add_OperationsServicer_to_server(operations, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)


async def _publish_health(coordinator: Coordinator, servicer: health.aio.HealthServicer) -> None:
    """Never returns: publishes the coordinator's readiness as the inference service's health."""
    statuses = health_pb2.HealthCheckResponse
    await servicer.set("", statuses.SERVING)
    while True:
        coordinator.changed.clear()
        status = statuses.SERVING if coordinator.is_ready else statuses.NOT_SERVING
        await servicer.set(INFERENCE_SERVICE, status)
        await coordinator.changed.wait()
