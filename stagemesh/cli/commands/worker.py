"""Implements `stagemesh worker`: one worker process."""

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
    """Run one worker, which joins a coordinator and runs the layers that it assigns.

    After SIGTERM the worker leaves the mesh without loss: its requests finish or move to another
    worker, and then it exits.

    Parameters
    ----------
    coordinator
        The coordinator's --mesh address.
    listen
        Listening address of this worker, for the coordinator and for other workers. Port 0 is any
        free port.
    advertise
        Address at which others reach this worker. [default: --listen; for all interfaces, the one
        that faces the coordinator]
    metrics
        Address of this worker's Prometheus metrics; the coordinator's /sd route lists it.
    model_path
        Path of the model on this machine, if it differs from the coordinator's MODEL.
    exit_with_parent
        Stop when standard input closes.
    """
    check_conflicts({"--listen": listen, "--metrics": metrics})
    # Imported here, because torch takes seconds, for which other commands would wait.
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
            step_times=None if device.paced is None else read_pace(device.paced),
            mesh_tls=mesh_security.tls(Role.WORKER),
            is_mesh_insecure=mesh_security.insecure_mesh,
            grace_seconds=life.grace,
            exit_with_parent=exit_with_parent,
        )
    )
