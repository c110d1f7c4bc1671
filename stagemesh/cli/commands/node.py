"""Implements `stagemesh node`: all workers of one machine."""

from contextlib import suppress
from functools import partial

from rich.console import Console

from runtime.rpc.tls import Role, check_mesh_address
from stagemesh.cli.options.common import (
    DEVICE_DEFAULTS,
    PROCESS_LOG_DEFAULTS,
    STOP_DEFAULTS,
    DeviceOptions,
    ProcessLogOptions,
    StopOptions,
)
from stagemesh.cli.options.launching import divide_device, gpus_for
from stagemesh.cli.options.option_types import Address, Reached, Workers, as_arguments
from stagemesh.cli.options.security import MESH_SECURITY_DEFAULTS, MeshSecurityOptions
from stagemesh.display.progress import print_line
from stagemesh.launcher.launcher import STOP_SECONDS
from stagemesh.launcher.ports import check_conflicts
from stagemesh.launcher.signals import Interrupts, run_interruptible
from stagemesh.launcher.worker_supervisor import RestartPolicy, WorkerLaunchPlan, WorkerSupervisor


# Longer than other functions: its parameters and their descriptions are the command's options.
def node(
    *,
    coordinator: Reached,
    workers: Workers | None = None,
    listen: Address = "127.0.0.1:50100",
    metrics: Address = "127.0.0.1:9101",
    model_path: str | None = None,
    device: DeviceOptions = DEVICE_DEFAULTS,
    mesh_security: MeshSecurityOptions = MESH_SECURITY_DEFAULTS,
    life: StopOptions = STOP_DEFAULTS,
    logs: ProcessLogOptions = PROCESS_LOG_DEFAULTS,
) -> None:
    """Run one worker per GPU of this machine, and restart workers that exit or stop responding.

    The ranks of one stage (--tp) must run on one machine; the coordinator may run on another.

    Parameters
    ----------
    coordinator
        The coordinator's --mesh address.
    workers
        Number of workers. [default: one per GPU, or one without GPUs]
    listen
        Listening address of the first worker; the others use the next free ports. Other machines
        must reach the workers there.
    metrics
        Address of the first worker's Prometheus metrics; the others use the next free ports.
    model_path
        Path of the model on this machine, if it differs from the coordinator's MODEL.
    """
    check_conflicts({"--listen": listen, "--metrics": metrics})
    tls = mesh_security.tls(Role.WORKER)
    check_mesh_address(listen, "--listen", tls, mesh_security.insecure_mesh)
    gpus = gpus_for(device.device)
    num_workers = workers or len(gpus) or 1
    path = ("--model-path", model_path) if model_path else ()
    plan = WorkerLaunchPlan(
        arguments=(
            *("worker", "--coordinator", coordinator, *path),
            *as_arguments(divide_device(device, num_workers, gpus), life, logs, mesh_security),
        ),
        num_workers=num_workers,
        first_address=listen,
        first_metrics_address=metrics,
        devices=gpus,
        tls=tls,
        kills_unresponsive=True,
    )
    with suppress(KeyboardInterrupt):
        run_interruptible(partial(_run, plan, life.grace + STOP_SECONDS))


async def _run(plan: WorkerLaunchPlan, grace_seconds: float, interrupts: Interrupts) -> None:
    supervisor = WorkerSupervisor(plan, partial(print_line, Console(stderr=True)), RestartPolicy())
    interrupts.on_second = supervisor.kill
    await supervisor.run(grace_seconds)
