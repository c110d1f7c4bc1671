"""Owns `stagemesh worker`: one worker process."""

import os

from stagemesh.cli.options.common import (
    DEVICE_DEFAULTS,
    PROCESS_LOG_DEFAULTS,
    STOP_DEFAULTS,
    DeviceOptions,
    ProcessLogOptions,
    StopOptions,
)
from stagemesh.cli.options.option_types import Address, ExitWithParent, Reached
from stagemesh.cli.options.security import MESH_SECURITY_DEFAULTS, MeshSecurityOptions
from stagemesh.launcher.ports import check_conflicts


# Longer than other functions: its parameters and their descriptions are the command's options.
def worker(
    *,
    coordinator: Reached,
    listen: Address = "127.0.0.1:0",
    advertise: Reached | None = None,
    metrics: Address = "127.0.0.1:0",
    model_path: str | None = None,
    device: DeviceOptions = DEVICE_DEFAULTS,
    mesh_security: MeshSecurityOptions = MESH_SECURITY_DEFAULTS,
    life: StopOptions = STOP_DEFAULTS,
    logs: ProcessLogOptions = PROCESS_LOG_DEFAULTS,
    exit_with_parent: ExitWithParent = False,
) -> None:
    """Run one worker: it joins a coordinator, which tells it what part of the model to run.

    SIGTERM has it leave without loss: what it runs is finished or goes on elsewhere, then it exits.

    Parameters
    ----------
    coordinator
        The coordinator's --mesh address.
    listen
        Where this worker takes frames from the stage before; others must reach it there.
        Port 0 takes a free one.
    advertise
        Where others reach it, when that is not where it listens. [default: --listen; for all
        interfaces, the address that faces the coordinator]
    metrics
        Where Prometheus reads this worker's metrics; it finds it through the coordinator.
    model_path
        The model on this node, where it is not what the coordinator calls it.
    exit_with_parent
        Stop when standard input ends.
    """
    check_conflicts({"--listen": listen, "--metrics": metrics})
    # Here, so that other commands do not wait seconds for torch.
    from runtime.host.logs import configure_logging
    from runtime.rpc.tls import Role
    from simulator.model.pacing import read_pace
    from stage_worker.server import WorkerOptions, run_worker

    configure_logging("worker", logs.log_level, logs.log_json)
    run_worker(
        WorkerOptions(
            coordinator=coordinator,
            listen=listen,
            advertise=advertise,
            metrics=metrics,
            model_path=model_path,
            device=device.device,
            device_sharers=device.device_sharers,
            num_threads=device.threads or os.cpu_count() or 1,
            pace=None if device.paced is None else read_pace(device.paced),
            mesh_tls=mesh_security.tls(Role.WORKER),
            is_mesh_insecure=mesh_security.insecure_mesh,
            grace_seconds=life.grace,
            exit_with_parent=exit_with_parent,
        )
    )
