"""Owns `stagemesh coordinator`: one coordinator process."""

from dataclasses import replace

from rich.console import Console

from runtime.logs import configure_logging
from stagemesh.cli.launching import check_options, coordinator_options
from stagemesh.cli.options import (
    ACCESS_DEFAULTS,
    ADDRESS_DEFAULTS,
    BATCHING_DEFAULTS,
    PLAN_DEFAULTS,
    PROCESS_LOG_DEFAULTS,
    AccessOptions,
    AddressOptions,
    BatchingOptions,
    ExitWithParent,
    LauncherKeyHash,
    PlanOptions,
    ProcessLogOptions,
)
from stagemesh.progress import ProgressView


def coordinator(
    model: str,
    /,
    *,
    plan: PlanOptions = PLAN_DEFAULTS,
    batching: BatchingOptions = BATCHING_DEFAULTS,
    addresses: AddressOptions = ADDRESS_DEFAULTS,
    access: AccessOptions = ACCESS_DEFAULTS,
    logs: ProcessLogOptions = PROCESS_LOG_DEFAULTS,
    exit_with_parent: ExitWithParent = False,
    launcher_key_hash: LauncherKeyHash = "",
) -> None:
    """Run the coordinator of a mesh: it takes requests and waits for its workers.

    Workers join with `stagemesh worker --coordinator HOST:PORT`, where HOST:PORT is this
    command's --mesh address.

    Parameters
    ----------
    model
        A folder in Hugging Face layout, a .gguf file, a Hub id as org/name, or smollm2; every
        node must have the same one.
    exit_with_parent
        Stop when standard input ends.
    launcher_key_hash
        The hash of the API key with which the parent asks for the state.
    """
    # Here, so that other commands do not wait for a tokenizer to be imported.
    from coordinator.server import run_coordinator

    configure_logging("coordinator", logs.log_level, logs.log_json)
    options = coordinator_options(model, plan, batching, addresses, access)
    with ProgressView(Console(stderr=True)) as progress:
        check_options(options, progress)
    run_coordinator(
        replace(options, exit_with_parent=exit_with_parent, launcher_key_hash=launcher_key_hash)
    )
