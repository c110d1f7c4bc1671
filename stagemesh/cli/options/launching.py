"""Converts options into a coordinator's options and into launch plans, and checks them."""

import os
from dataclasses import dataclass, fields, replace

from coordinator.options import CoordinatorOptions
from coordinator.planning.replica_layout import plan_replica
from coordinator.security.listen_policy import check_listen_addresses
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.checkpoints.model_store import resolve_model
from runtime.errors import InvalidRequestError, NotEnoughMemoryError
from runtime.host.devices import visible_gpus
from runtime.host.memory import total_memory_bytes
from runtime.model_config.model_config import load_model_config
from runtime.rpc.tls import Role
from stagemesh.cli.options.common import (
    ADDRESS_DEFAULTS,
    BATCHING_DEFAULTS,
    LIFE_DEFAULTS,
    PLAN_DEFAULTS,
    AddressOptions,
    BatchingOptions,
    DeviceOptions,
    LifeOptions,
    LogOptions,
    PlanOptions,
    StopOptions,
)
from stagemesh.cli.options.option_types import as_arguments
from stagemesh.cli.options.security import (
    ACCESS_DEFAULTS,
    API_SECURITY_DEFAULTS,
    MESH_SECURITY_DEFAULTS,
    AccessOptions,
    ApiSecurityOptions,
    MeshSecurityOptions,
)
from stagemesh.display.progress import ProgressView
from stagemesh.launcher.launcher import LaunchPlan
from stagemesh.launcher.ports import dialable, reserve
from stagemesh.launcher.worker_supervisor import WorkerLaunchPlan
from stagemesh.units import format_size

FIRST_WORKER_ADDRESS = "127.0.0.1:50100"
# The least memory of a worker process: Python, torch and gRPC.
PROCESS_BYTES = 300 * 2**20


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """The option groups of a command that starts a coordinator."""

    plan: PlanOptions = PLAN_DEFAULTS
    batching: BatchingOptions = BATCHING_DEFAULTS
    addresses: AddressOptions = ADDRESS_DEFAULTS
    access: AccessOptions = ACCESS_DEFAULTS
    mesh_security: MeshSecurityOptions = MESH_SECURITY_DEFAULTS
    api_security: ApiSecurityOptions = API_SECURITY_DEFAULTS
    life: LifeOptions = LIFE_DEFAULTS

    @property
    def groups(self) -> tuple[object, ...]:
        """All groups, in order of declaration."""
        return tuple(getattr(self, field.name) for field in fields(self))


def coordinator_options(model: str, mesh: MeshOptions) -> CoordinatorOptions:
    """The coordinator's options for these groups; raises `CertificateError`."""
    plan, batching, addresses, access = mesh.plan, mesh.batching, mesh.addresses, mesh.access
    return CoordinatorOptions(
        model=model,
        grpc=addresses.grpc,
        http=addresses.http,
        mesh=addresses.mesh,
        pp=plan.num_stages,
        dp=plan.dp,
        layers=plan.layers,
        tp=plan.tp,
        backend=plan.backend,
        collective_timeout_seconds=plan.collective_timeout,
        overlap=plan.overlap,
        dtype=plan.dtype,
        block_size=batching.block_size,
        max_model_len=plan.max_model_len,
        kv_memory_bytes=batching.kv_memory,
        max_sequences=batching.max_sequences,
        max_step_tokens=batching.max_step_tokens,
        policy=batching.policy,
        tpot_seconds=batching.tpot,
        num_steps_in_flight=batching.steps_in_flight,
        max_waiting=batching.max_waiting,
        prefix_cache=batching.prefix_cache == "on",
        max_request_bytes=addresses.max_request_size,
        cors_origins=addresses.cors_origins or (),
        api_keys=access.api_keys,
        allow_anonymous=access.allow_anonymous,
        protect_state=access.protect_state,
        key_max_in_flight=access.key_max_in_flight,
        key_tokens_per_minute=access.key_tokens_per_minute,
        mesh_tls=mesh.mesh_security.tls(Role.COORDINATOR),
        is_mesh_insecure=mesh.mesh_security.insecure_mesh,
        api_tls=mesh.api_security.tls(),
        grace_seconds=mesh.life.grace,
        replan_seconds=mesh.life.replan_after,
    )


def check_options(options: CoordinatorOptions, progress: ProgressView) -> None:
    """Prepares the model and checks the options, so that errors appear before processes start.

    Downloads or converts the model into the cache if needed. Raises what the coordinator would
    report: an unprotected API, unusable keys, a missing model, layers that do not add up.
    """
    check_listen_addresses(options)
    folder = resolve_model(options.model, progress=progress.show_preparation)
    config = load_model_config(folder)
    checkpoint = Checkpoint.open(folder)
    plan_replica(options, config, checkpoint.fingerprint, replica=0)


def make_launch_plan(
    model: str, mesh: MeshOptions, device: DeviceOptions, logs: LogOptions
) -> LaunchPlan:
    """The processes to start.

    Raises `NotEnoughMemoryError` if the KV caches exceed this machine's memory, `PortTakenError`
    if an address is in use, `InvalidRequestError` if this machine lacks the device, the backend or
    the memory for the workers, and `CertificateError`.
    """
    num_workers, life, security = mesh.plan.num_workers, mesh.life, mesh.mesh_security
    security.tls(Role.WORKER)
    _check_memory(mesh.batching.kv_memory, num_workers)
    gpus = gpus_for(device.device)
    _check_gpus(device.device, mesh.plan.backend, gpus)
    apis = _reserved(mesh.addresses)
    mesh = replace(mesh, addresses=apis)
    device = divide_device(device, num_workers, gpus)
    return LaunchPlan(
        coordinator=("coordinator", model, *as_arguments(*mesh.groups, logs)),
        workers=WorkerLaunchPlan(
            arguments=(
                *("worker", "--coordinator", dialable(apis.mesh)),
                *as_arguments(device, StopOptions(grace=life.grace), logs, security),
            ),
            num_workers=num_workers,
            first_address=FIRST_WORKER_ADDRESS,
            devices=gpus,
            reserved=(apis.grpc, apis.http, apis.mesh),
        ),
        target=dialable(apis.grpc),
        http=dialable(apis.http),
        mesh=dialable(apis.mesh),
        mesh_tls=security.tls(Role.COORDINATOR),
        is_api_tls=mesh.api_security.tls() is not None,
        grace_seconds=life.grace,
    )


def _reserved(addresses: AddressOptions) -> AddressOptions:
    """The same addresses with port 0 replaced by distinct free ports."""
    grpc = reserve(addresses.grpc, "--grpc")
    http = reserve(addresses.http, "--http", taken=(grpc,))
    mesh = reserve(addresses.mesh, "--mesh", taken=(grpc, http))
    return replace(addresses, grpc=grpc, http=http, mesh=mesh)


def divide_device(device: DeviceOptions, num_workers: int, gpus: tuple[str, ...]) -> DeviceOptions:
    """The options of each worker when `num_workers` divide the cores and the GPUs."""
    threads = device.threads or max(1, (os.cpu_count() or 1) // num_workers)
    sharers = max(device.device_sharers, -(-num_workers // len(gpus)) if gpus else 1)
    return replace(device, threads=threads, device_sharers=sharers)


def gpus_for(device: str) -> tuple[str, ...]:
    """The GPUs for workers on `device`; empty for CPUs."""
    return () if device == "cpu" else visible_gpus()


def _check_gpus(device: str, backend: str, gpus: tuple[str, ...]) -> None:
    for option, value, needing in (("--device", device, "cuda"), ("--backend", backend, "nccl")):
        if value == needing and not gpus:
            problem = f"{value} needs a GPU, and this machine has none; use auto"
            raise InvalidRequestError(field=option, problem=problem)


def _check_memory(kv_memory_bytes: int, num_workers: int) -> None:
    available_bytes = total_memory_bytes()
    process_bytes, needed_bytes = num_workers * PROCESS_BYTES, num_workers * kv_memory_bytes
    if process_bytes > available_bytes:
        problem = (
            f"{num_workers} workers take {format_size(process_bytes)} before they load any weights,"
            f" and this machine has {format_size(available_bytes)}; use fewer workers, or several "
            "machines"
        )
        raise InvalidRequestError(field="--pp, --tp, --dp", problem=problem)
    if needed_bytes > available_bytes:
        raise NotEnoughMemoryError(
            needed_bytes=needed_bytes,
            available_bytes=available_bytes,
            what=f"the KV cache of {num_workers} workers",
        )
