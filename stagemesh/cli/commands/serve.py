"""Owns `stagemesh serve`: a whole mesh on this machine until Ctrl-C."""

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
from stagemesh.display.progress import ProgressView, tell
from stagemesh.display.render import plan_table
from stagemesh.launcher.launcher import LaunchPlan, local_mesh
from stagemesh.launcher.signals import Interrupts, run_interruptible

STOPPING = "stopping, running requests may finish; Ctrl-C again does not wait for them"


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
    """Serve a model with a mesh on this machine, until Ctrl-C.

    Starts a coordinator and one worker for each rank of each stage of each replica as processes,
    restarts workers that die, and stops everything at the end. A second Ctrl-C does not wait for
    running requests.

    Parameters
    ----------
    model
        A folder in Hugging Face layout, a .gguf file, a Hub id as org/name, or smollm2.
    """
    console = Console(stderr=True)
    if device.paced is not None:
        read_pace(device.paced)  # what is wrong with it is said before anything starts
    mesh = MeshOptions(plan, batching, addresses, access, mesh_security, api_security, life)
    launch_plan = make_launch_plan(model, mesh, device, logs)
    with ProgressView(console) as progress:
        check_options(coordinator_options(model, mesh), progress)
    try:
        run_interruptible(partial(_serve, launch_plan, console))
    except KeyboardInterrupt:
        tell(console, "stopped")


async def _serve(plan: LaunchPlan, console: Console, interrupts: Interrupts) -> None:
    async with local_mesh(plan, partial(tell, console)) as mesh:
        interrupts.on_first = partial(tell, console, STOPPING)
        interrupts.on_second = mesh.kill
        with ProgressView(console) as progress:
            state = await mesh.wait_until_ready(progress.show_state)
        console.print(plan_table(state))
        console.print()
        scheme = "https" if plan.is_api_tls else "http"
        tell(console, f"ready at {plan.target}, and at {scheme}://{plan.http}/v1; ask with:")
        tell(console, f'  stagemesh infer "Why is the sky blue?"{_target_option(plan.target)}')
        tell(console, "Ctrl-C stops it")
        await mesh.watch(lambda now: progress.show_phase(now.phase))


def _target_option(target: str) -> str:
    return "" if target == ADDRESS_DEFAULTS.grpc else f" --target {target}"
