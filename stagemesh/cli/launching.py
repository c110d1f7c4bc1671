"""Owns the way from options to processes on this machine, for the commands that start a mesh."""

import os
from dataclasses import replace

from coordinator.options import CoordinatorOptions
from coordinator.plan import plan_replica
from runtime.checkpoint import Checkpoint
from runtime.errors import NotEnoughMemoryError
from runtime.memory import total_memory_bytes
from runtime.model_config import load_model_config
from runtime.model_store import resolve_model
from stagemesh.cli.options import (
    AddressOptions,
    BatchingOptions,
    DeviceOptions,
    LogOptions,
    PlanOptions,
    as_arguments,
)
from stagemesh.launcher import LaunchPlan
from stagemesh.ports import dialable, reserve
from stagemesh.progress import ProgressView

FIRST_WORKER_ADDRESS = "127.0.0.1:50100"


def coordinator_options(
    model: str, plan: PlanOptions, batching: BatchingOptions, addresses: AddressOptions
) -> CoordinatorOptions:
    """What the command line says, in the coordinator's own words."""
    return CoordinatorOptions(
        model=model,
        grpc=addresses.grpc,
        http=addresses.http,
        mesh=addresses.mesh,
        pp=plan.num_stages,
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
        num_steps_in_flight=batching.steps_in_flight,
        max_waiting=batching.max_waiting,
        prefix_cache=batching.prefix_cache == "on",
        max_request_bytes=addresses.max_request_size,
        cors_origins=addresses.cors_origins or (),
    )


def check_model(options: CoordinatorOptions, progress: ProgressView) -> None:
    """Downloads or converts the model where needed, and refuses at once what can be seen now.

    The processes find the model in the cache then. Raises what the coordinator would report:
    the model is not there, its files are broken, the layers do not add up.
    """
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
    return LaunchPlan(
        coordinator=("coordinator", model, *as_arguments(plan, batching, addresses, logs)),
        worker=(
            *("worker", "--coordinator", dialable(addresses.mesh)),
            *as_arguments(device, logs),
        ),
        num_workers=plan.num_workers,
        target=dialable(addresses.grpc),
        http=dialable(addresses.http),
        first_worker_address=FIRST_WORKER_ADDRESS,
    )


def _check_memory(needed_bytes: int, num_workers: int) -> None:
    available_bytes = total_memory_bytes()
    if needed_bytes > available_bytes:
        raise NotEnoughMemoryError(
            needed_bytes=needed_bytes,
            available_bytes=available_bytes,
            what=f"the KV cache of {num_workers} workers",
        )
