"""Owns the way from options to processes on this machine, for the commands that start a mesh."""

import os
from dataclasses import replace

from coordinator.exposure import check_access
from coordinator.options import CoordinatorOptions
from coordinator.plan import plan_replica
from runtime.checkpoint import Checkpoint
from runtime.devices import visible_gpus
from runtime.errors import InvalidRequestError, NotEnoughMemoryError
from runtime.memory import total_memory_bytes
from runtime.model_config import load_model_config
from runtime.model_store import resolve_model
from runtime.tls import Role
from stagemesh.cli.arguments import as_arguments
from stagemesh.cli.options import (
    LIFE_DEFAULTS,
    AddressOptions,
    BatchingOptions,
    DeviceOptions,
    LifeOptions,
    LogOptions,
    PlanOptions,
    StopOptions,
)
from stagemesh.cli.security import (
    DOOR_SECURITY_DEFAULTS,
    MESH_SECURITY_DEFAULTS,
    AccessOptions,
    DoorSecurityOptions,
    MeshSecurityOptions,
)
from stagemesh.fleet import FleetPlan
from stagemesh.launcher import LaunchPlan
from stagemesh.ports import dialable, reserve
from stagemesh.progress import ProgressView
from stagemesh.values import format_size

FIRST_WORKER_ADDRESS = "127.0.0.1:50100"
# What Python, torch and gRPC take in each process at least.
PROCESS_BYTES = 300 * 2**20


# Longer than other functions: a line for each option.
def coordinator_options(
    model: str,
    plan: PlanOptions,
    batching: BatchingOptions,
    addresses: AddressOptions,
    access: AccessOptions,
    mesh_security: MeshSecurityOptions = MESH_SECURITY_DEFAULTS,
    door_security: DoorSecurityOptions = DOOR_SECURITY_DEFAULTS,
    life: LifeOptions = LIFE_DEFAULTS,
) -> CoordinatorOptions:
    """What the command line says, in the coordinator's own words; raises `CertificateError`."""
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
        mesh_tls=mesh_security.tls(Role.COORDINATOR),
        is_mesh_insecure=mesh_security.insecure_mesh,
        door_tls=door_security.tls(),
        grace_seconds=life.grace,
        replan_seconds=life.replan_after,
    )


def check_options(options: CoordinatorOptions, progress: ProgressView) -> None:
    """Downloads or converts the model where needed, and refuses at once what can be seen now.

    The processes find the model in the cache then. Raises what the coordinator would report: a
    door is open to others, keys or the model are not there or broken, the layers do not add up.
    """
    check_access(options)
    folder = resolve_model(options.model, progress=progress.show_preparation)
    config = load_model_config(folder)
    checkpoint = Checkpoint.open(folder)
    plan_replica(options, config, checkpoint.fingerprint, replica=0)


# Longer than other functions: its parameters are the command's groups of options.
def make_launch_plan(
    model: str,
    plan: PlanOptions,
    batching: BatchingOptions,
    device: DeviceOptions,
    addresses: AddressOptions,
    access: AccessOptions,
    logs: LogOptions,
    mesh_security: MeshSecurityOptions = MESH_SECURITY_DEFAULTS,
    door_security: DoorSecurityOptions = DOOR_SECURITY_DEFAULTS,
    life: LifeOptions = LIFE_DEFAULTS,
) -> LaunchPlan:
    """The processes to start.

    Raises `NotEnoughMemoryError` if this machine cannot hold the KV caches that were asked for,
    `PortTakenError` if a door's address is in use, `InvalidRequestError` for a device, a backend
    or a number of workers that this machine cannot have, and `CertificateError`.
    """
    mesh_security.tls(Role.WORKER)
    _check_memory(batching.kv_memory, plan.num_workers)
    gpus = gpus_for(device.device)
    _check_gpus(device.device, plan.backend, gpus)
    grpc = reserve(addresses.grpc, "--grpc")
    http = reserve(addresses.http, "--http", taken=(grpc,))
    mesh = reserve(addresses.mesh, "--mesh", taken=(grpc, http))
    addresses = replace(addresses, grpc=grpc, http=http, mesh=mesh)
    device = shared_out(device, plan.num_workers, gpus)
    stop = StopOptions(grace=life.grace)
    coordinator = (plan, batching, addresses, access, logs, mesh_security, door_security, life)
    return LaunchPlan(
        coordinator=("coordinator", model, *as_arguments(*coordinator)),
        workers=FleetPlan(
            arguments=(
                *("worker", "--coordinator", dialable(mesh)),
                *as_arguments(device, stop, logs, mesh_security),
            ),
            num_workers=plan.num_workers,
            first_address=FIRST_WORKER_ADDRESS,
            devices=gpus,
            reserved=(grpc, http, mesh),
        ),
        target=dialable(grpc),
        http=dialable(http),
        mesh=dialable(mesh),
        mesh_tls=mesh_security.tls(Role.COORDINATOR),
        is_door_tls=door_security.tls() is not None,
        grace_seconds=life.grace,
    )


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
