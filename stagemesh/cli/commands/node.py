"""Owns `stagemesh node`: the workers of one machine, for a coordinator that may be elsewhere."""

from contextlib import suppress
from functools import partial

from rich.console import Console

from runtime.rpc.tls import Role, check_mesh_address
from stagemesh.cli.options.arguments import as_arguments
from stagemesh.cli.options.common import (
    DEVICE_DEFAULTS,
    PROCESS_LOG_DEFAULTS,
    STOP_DEFAULTS,
    DeviceOptions,
    ProcessLogOptions,
    StopOptions,
)
from stagemesh.cli.options.launching import gpus_for, shared_out
from stagemesh.cli.options.option_types import Address, Reached, Workers
from stagemesh.cli.options.security import MESH_SECURITY_DEFAULTS, MeshSecurityOptions
from stagemesh.display.progress import tell
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
    """Run the workers of this machine, one for each GPU, and start again those that die or freeze.

    Workers of one node can be the ranks of one stage (--tp): they share its memory.

    Parameters
    ----------
    coordinator
        The coordinator's --mesh address.
    workers
        How many. [default: one for each GPU, or one where there is none]
    listen
        Where the first worker listens, the others on the ports after it.
    metrics
        Where Prometheus reads the first worker's metrics, the others' on the ports after it.
    model_path
        The model on this node, where it is not what the coordinator calls it.
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
            *as_arguments(shared_out(device, num_workers, gpus), life, logs, mesh_security),
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
    fleet = WorkerSupervisor(plan, partial(tell, Console(stderr=True)), RestartPolicy())
    interrupts.on_second = fleet.kill
    await fleet.run(grace_seconds)
