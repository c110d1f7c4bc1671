"""Owns the way from options to processes on this machine, for the commands that start a mesh."""

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
from stagemesh.cli.options.arguments import as_arguments
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
# What Python, torch and gRPC take in each process at least.
PROCESS_BYTES = 300 * 2**20


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """The groups of options that say what a mesh is to be, of a command that starts one."""

    plan: PlanOptions = PLAN_DEFAULTS
    batching: BatchingOptions = BATCHING_DEFAULTS
    addresses: AddressOptions = ADDRESS_DEFAULTS
    access: AccessOptions = ACCESS_DEFAULTS
    mesh_security: MeshSecurityOptions = MESH_SECURITY_DEFAULTS
    api_security: ApiSecurityOptions = API_SECURITY_DEFAULTS
    life: LifeOptions = LIFE_DEFAULTS

    @property
    def groups(self) -> tuple[object, ...]:
        """All of them, in order."""
        return tuple(getattr(self, field.name) for field in fields(self))


def coordinator_options(model: str, mesh: MeshOptions) -> CoordinatorOptions:
    """What the command line says, in the coordinator's own words; raises `CertificateError`."""
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
    """Downloads or converts the model where needed, and refuses at once what can be seen now.

    The processes find the model in the cache then. Raises what the coordinator would report: a
    API is open to others, keys or the model are not there or broken, the layers do not add up.
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

    Raises `NotEnoughMemoryError` if this machine cannot hold the KV caches that were asked for,
    `PortTakenError` if an API's address is in use, `InvalidRequestError` for a device, a backend
    or a number of workers that this machine cannot have, and `CertificateError`.
    """
    num_workers, life, security = mesh.plan.num_workers, mesh.life, mesh.mesh_security
    security.tls(Role.WORKER)
    _check_memory(mesh.batching.kv_memory, num_workers)
    gpus = gpus_for(device.device)
    _check_gpus(device.device, mesh.plan.backend, gpus)
    apis = _reserved(mesh.addresses)
    mesh = replace(mesh, addresses=apis)
    device = shared_out(device, num_workers, gpus)
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
    """The same APIs, each at a port that is free and no other's."""
    grpc = reserve(addresses.grpc, "--grpc")
    http = reserve(addresses.http, "--http", taken=(grpc,))
    mesh = reserve(addresses.mesh, "--mesh", taken=(grpc, http))
    return replace(addresses, grpc=grpc, http=http, mesh=mesh)


def shared_out(device: DeviceOptions, num_workers: int, gpus: tuple[str, ...]) -> DeviceOptions:
    """Options for each of `num_workers`, which divide the cores and, if they must, the GPUs."""
    threads = device.threads or max(1, (os.cpu_count() or 1) // num_workers)
    sharers = max(device.device_sharers, -(-num_workers // len(gpus)) if gpus else 1)
    return replace(device, threads=threads, device_sharers=sharers)


def gpus_for(device: str) -> tuple[str, ...]:
    """The GPUs that workers on `device` share out; none for CPUs."""
    return () if device == "cpu" else visible_gpus()


def _check_gpus(device: str, backend: str, gpus: tuple[str, ...]) -> None:
    for option, value, needing in (("--device", device, "cuda"), ("--backend", backend, "nccl")):
        if value == needing and not gpus:
            problem = f"{value} needs GPUs, and this machine offers none; leave it at auto"
            raise InvalidRequestError(field=option, problem=problem)


def _check_memory(kv_memory_bytes: int, num_workers: int) -> None:
    available_bytes = total_memory_bytes()
    process_bytes, needed_bytes = num_workers * PROCESS_BYTES, num_workers * kv_memory_bytes
    if process_bytes > available_bytes:
        problem = (
            f"{num_workers} workers take {format_size(process_bytes)} before they hold any weights,"
            f" and this machine has {format_size(available_bytes)}; ask for fewer, or spread them "
            "over several machines"
        )
        raise InvalidRequestError(field="--pp, --tp, --dp", problem=problem)
    if needed_bytes > available_bytes:
        raise NotEnoughMemoryError(
            needed_bytes=needed_bytes,
            available_bytes=available_bytes,
            what=f"the KV cache of {num_workers} workers",
        )
