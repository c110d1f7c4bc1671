"""Owns the way from options to processes on this machine, for the commands that start a mesh."""

import os
from dataclasses import replace

from coordinator.api_keys import hash_of, new_key
from coordinator.exposure import check_access
from coordinator.options import CoordinatorOptions
from coordinator.plan import plan_replica
from runtime.checkpoint import Checkpoint
from runtime.devices import visible_gpus
from runtime.errors import NotEnoughMemoryError
from runtime.memory import total_memory_bytes
from runtime.model_config import load_model_config
from runtime.model_store import resolve_model
from stagemesh.cli.options import (
    AccessOptions,
    AddressOptions,
    BatchingOptions,
    DeviceOptions,
    LogOptions,
    PlanOptions,
    as_arguments,
)
from stagemesh.fleet import FleetPlan
from stagemesh.launcher import LaunchPlan
from stagemesh.ports import dialable, reserve
from stagemesh.progress import ProgressView

FIRST_WORKER_ADDRESS = "127.0.0.1:50100"


def coordinator_options(
    model: str,
    plan: PlanOptions,
    batching: BatchingOptions,
    addresses: AddressOptions,
    access: AccessOptions,
) -> CoordinatorOptions:
    """What the command line says, in the coordinator's own words."""
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
        is_overlapped=plan.overlap == "on",
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


def make_launch_plan(
    model: str,
    plan: PlanOptions,
    batching: BatchingOptions,
    device: DeviceOptions,
    addresses: AddressOptions,
    access: AccessOptions,
    logs: LogOptions,
) -> LaunchPlan:
    """The processes to start.

    Raises `NotEnoughMemoryError` if this machine cannot hold the KV caches that were asked for, and
    `PortTakenError` if a door's address is in use.
    """
    _check_memory(batching.kv_memory * plan.num_workers, plan.num_workers)
    addresses = replace(
        addresses,
        grpc=reserve(addresses.grpc, "--grpc"),
        http=reserve(addresses.http, "--http"),
        mesh=reserve(addresses.mesh, "--mesh"),
    )
    threads = device.threads or max(1, (os.cpu_count() or 1) // plan.num_workers)
    device = replace(device, threads=threads)
    # Where the state asks for a key, the launcher, who follows it, has one of its own.
    api_key = new_key() if access.protect_state else None
    key_option = ("--launcher-key-hash", hash_of(api_key)) if api_key else ()
    return LaunchPlan(
        coordinator=(
            *("coordinator", model, *key_option),
            *as_arguments(plan, batching, addresses, access, logs),
        ),
        workers=FleetPlan(
            arguments=(
                *("worker", "--coordinator", dialable(addresses.mesh)),
                *as_arguments(device, logs),
            ),
            num_workers=plan.num_workers,
            first_address=FIRST_WORKER_ADDRESS,
            devices=gpus_for(device.device),
        ),
        target=dialable(addresses.grpc),
        http=dialable(addresses.http),
        api_key=api_key,
    )


def gpus_for(device: str) -> tuple[str, ...]:
    """The GPUs that workers on `device` share out; none for CPUs."""
    return () if device == "cpu" else visible_gpus()


def _check_memory(needed_bytes: int, num_workers: int) -> None:
    available_bytes = total_memory_bytes()
    if needed_bytes > available_bytes:
        raise NotEnoughMemoryError(
            needed_bytes=needed_bytes,
            available_bytes=available_bytes,
            what=f"the KV cache of {num_workers} workers",
        )
