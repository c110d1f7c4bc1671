"""Implements `stagemesh serve`: a complete mesh on this machine until Ctrl-C."""

from functools import partial

from rich.console import Console

from simulator.model.pacing import read_pace
from stagemesh.cli.options.common import (
    ADDRESS_DEFAULTS,
    BATCHING_DEFAULTS,
    DEVICE_DEFAULTS,
    LIFE_DEFAULTS,
    LOG_DEFAULTS,
    PLAN_DEFAULTS,
    AddressOptions,
    BatchingOptions,
    DeviceOptions,
    LifeOptions,
    LogOptions,
    PlanOptions,
)
from stagemesh.cli.options.launching import (
    MeshOptions,
    check_options,
    coordinator_options,
    make_launch_plan,
)
from stagemesh.cli.options.security import (
    ACCESS_DEFAULTS,
    API_SECURITY_DEFAULTS,
    MESH_SECURITY_DEFAULTS,
    AccessOptions,
    ApiSecurityOptions,
    MeshSecurityOptions,
)
from stagemesh.display.progress import ProgressView, print_line
from stagemesh.display.render import plan_table
from stagemesh.launcher.launcher import LaunchPlan, local_mesh
from stagemesh.launcher.signals import Interrupts, run_interruptible

STOPPING = "stopping after running requests finish; press Ctrl-C again to stop now"


def serve(
    model: str,
    /,
    *,
    plan: PlanOptions = PLAN_DEFAULTS,
    batching: BatchingOptions = BATCHING_DEFAULTS,
    device: DeviceOptions = DEVICE_DEFAULTS,
    addresses: AddressOptions = ADDRESS_DEFAULTS,
    access: AccessOptions = ACCESS_DEFAULTS,
    mesh_security: MeshSecurityOptions = MESH_SECURITY_DEFAULTS,
    api_security: ApiSecurityOptions = API_SECURITY_DEFAULTS,
    life: LifeOptions = LIFE_DEFAULTS,
    logs: LogOptions = LOG_DEFAULTS,
) -> None:
    """Serve a model on this machine, until Ctrl-C.

    Starts a coordinator process and one worker process for each rank of each stage of each
    replica, and restarts workers that exit. Ctrl-C lets running requests finish, for up to --grace
    seconds; a second Ctrl-C stops at once.

    Parameters
    ----------
    model
        A folder in Hugging Face layout, a .gguf file, a Hub id such as org/name, or smollm2.
    """
    console = Console(stderr=True)
    if device.paced is not None:
        read_pace(device.paced)  # reports errors in the file before any process starts
    mesh = MeshOptions(plan, batching, addresses, access, mesh_security, api_security, life)
    launch_plan = make_launch_plan(model, mesh, device, logs)
    with ProgressView(console) as progress:
        check_options(coordinator_options(model, mesh), progress)
    try:
        run_interruptible(partial(_serve, launch_plan, console))
    except KeyboardInterrupt:
        print_line(console, "stopped")


async def _serve(plan: LaunchPlan, console: Console, interrupts: Interrupts) -> None:
    async with local_mesh(plan, partial(print_line, console)) as mesh:
        interrupts.on_first = partial(print_line, console, STOPPING)
        interrupts.on_second = mesh.kill
        with ProgressView(console) as progress:
            state = await mesh.wait_until_ready(progress.show_state)
        console.print(plan_table(state))
        console.print()
        scheme = "https" if plan.is_api_tls else "http"
        print_line(console, f"ready at {plan.target} and {scheme}://{plan.http}/v1; test it with:")
        target = "" if plan.target == ADDRESS_DEFAULTS.grpc else f" --target {plan.target}"
        print_line(console, f'  stagemesh infer "Why is the sky blue?"{target}')
        print_line(console, "Ctrl-C stops it")
        await mesh.watch(lambda now: progress.show_phase(now.phase))
