"""Implements `stagemesh status`: one snapshot of a running mesh."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runtime.rpc.tls import Role
from stagemesh.cli.options.option_types import ApiKey, Dialled, Flag
from stagemesh.cli.options.security import OPERATOR_SECURITY_DEFAULTS, OperatorSecurityOptions
from stagemesh.client.state import MeshState
from stagemesh.client.sync_client import Client
from stagemesh.display.render import (
    hop_table,
    load_table,
    output_console,
    plan_table,
    rank_table,
    stage_table,
    summary,
    worker_table,
)
from stagemesh.display.scheduler_tables import scheduler_tables


def status(
    *,
    target: Dialled | None = None,
    api_key: ApiKey = None,
    scheduler: Annotated[bool, Flag] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    security: OperatorSecurityOptions = OPERATOR_SECURITY_DEFAULTS,
) -> None:
    """Show the plan, workers, stages, hops and load of a mesh.

    Seconds, frames and bytes are totals of the current epoch, which starts when a pipeline is
    formed and ends when it changes or fails.

    Parameters
    ----------
    target
        Address of the coordinator's gRPC API, or its --mesh address. [default: 127.0.0.1:50050, or
        127.0.0.1:50051 with --tls-dir]
    api_key
        API key. Prefer its environment variable: other users of this machine can read command
        lines.
    scheduler
        Show instead the state of the batching policy, and the causes of idle time.
    as_json
        Print one JSON object, for scripts.
    """
    tls = security.channel_tls(Role.COORDINATOR)
    with Client(target or security.default_target, api_key=api_key, tls=tls) as client:
        state = client.state()
    if as_json:
        sys.stdout.write(json.dumps(asdict(state), indent=2) + "\n")
    else:
        _show(state, _scheduler_tables(state) if scheduler else _tables(state), output_console())


def _show(state: MeshState, tables: Iterable[Table], console: Console) -> None:
    console.print(Text(summary(state), style="bold"), soft_wrap=True)
    if state.failure:
        console.print(Text(f"failed: {state.failure}", style="red"), soft_wrap=True)
    for table in tables:
        console.print()
        console.print(table)


def _scheduler_tables(state: MeshState) -> Iterator[Table]:
    for replica in state.replicas:
        yield from scheduler_tables(replica)


def _tables(state: MeshState) -> Iterator[Table]:
    plan = plan_table(state)
    if not plan.row_count:
        # No pipeline is formed: stages would show the previous one.
        if state.workers:
            yield worker_table(state.workers)
        return
    yield plan
    yield stage_table(state.replicas)
    if any(len(replica.stages) > 1 for replica in state.replicas):
        yield hop_table(state.replicas)
    ranks = rank_table(state.replicas)
    if ranks.row_count:
        yield ranks
    yield load_table(state.replicas)
