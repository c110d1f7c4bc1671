"""Implements `stagemesh coordinator`: one coordinator process."""

from dataclasses import replace

from rich.console import Console

from runtime.host.logs import configure_logging
from stagemesh.cli.options.common import (
    ADDRESS_DEFAULTS,
    BATCHING_DEFAULTS,
    LIFE_DEFAULTS,
    PLAN_DEFAULTS,
    PROCESS_LOG_DEFAULTS,
    AddressOptions,
    BatchingOptions,
    LifeOptions,
    PlanOptions,
    ProcessLogOptions,
)
from stagemesh.cli.options.launching import MeshOptions, check_options, coordinator_options
from stagemesh.cli.options.option_types import ExitWithParent
from stagemesh.cli.options.security import (
    ACCESS_DEFAULTS,
    API_SECURITY_DEFAULTS,
    MESH_SECURITY_DEFAULTS,
    AccessOptions,
    ApiSecurityOptions,
    MeshSecurityOptions,
)
from stagemesh.display.progress import ProgressView


def coordinator(
    model: str,
    /,
    *,
    plan: PlanOptions = PLAN_DEFAULTS,
    batching: BatchingOptions = BATCHING_DEFAULTS,
    addresses: AddressOptions = ADDRESS_DEFAULTS,
    access: AccessOptions = ACCESS_DEFAULTS,
    mesh_security: MeshSecurityOptions = MESH_SECURITY_DEFAULTS,
    api_security: ApiSecurityOptions = API_SECURITY_DEFAULTS,
    life: LifeOptions = LIFE_DEFAULTS,
    logs: ProcessLogOptions = PROCESS_LOG_DEFAULTS,
    exit_with_parent: ExitWithParent = False,
) -> None:
    """Run the coordinator of a mesh, which accepts requests and schedules them on its workers.

    Workers join with `stagemesh worker --coordinator HOST:PORT`, where HOST:PORT is the
    --mesh address of this command. Requests wait until enough workers have joined.

    Parameters
    ----------
    model
        A folder in Hugging Face layout, a .gguf file, a Hub id such as org/name, or smollm2. All
        machines must have the same model.
    exit_with_parent
        Stop when standard input closes.
    """
    # Imported here, because tokenizers take long, for which other commands would wait.
    from coordinator.server import run_coordinator

    configure_logging("coordinator", logs.log_level, logs.log_json)
    mesh = MeshOptions(plan, batching, addresses, access, mesh_security, api_security, life)
    options = coordinator_options(model, mesh)
    with ProgressView(Console(stderr=True)) as progress:
        check_options(options, progress)
    if exit_with_parent:
        # The parent also starts the workers: none waits from an earlier coordinator.
        options = replace(options, settle_seconds=0.0, exit_with_parent=True)
    run_coordinator(options)
