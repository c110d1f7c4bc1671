"""Implements `stagemesh top`: a live view of a running mesh."""

import time
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from runtime.errors import InvalidRequestError
from runtime.rpc.tls import Role
from stagemesh.cli.options.option_types import ApiKey, Dialled
from stagemesh.cli.options.security import OPERATOR_SECURITY_DEFAULTS, OperatorSecurityOptions
from stagemesh.client.rpc_error import StagemeshRpcError
from stagemesh.client.state import MeshState
from stagemesh.client.sync_client import Client
from stagemesh.display.top import screen


def top(
    *,
    target: Dialled | None = None,
    api_key: ApiKey = None,
    interval: Annotated[float, Parameter(validator=Number(gt=0))] = 1.0,
    security: OperatorSecurityOptions = OPERATOR_SECURITY_DEFAULTS,
) -> None:
    """Show replicas, stages, queue and tokens per second of a mesh live, until Ctrl-C.

    Busy and bubble are fractions of the time between two updates. A mesh that does not answer is
    polled until it does.

    Parameters
    ----------
    target
        Address of the coordinator's gRPC API, or its --mesh address. [default: 127.0.0.1:50050, or
        127.0.0.1:50051 with --tls-dir]
    api_key
        API key. Prefer its environment variable: other users of this machine can read command
        lines.
    interval
        Seconds between updates.
    """
    console = Console()
    if not console.is_terminal:
        problem = "it needs a terminal; scripts can use `stagemesh status --json`"
        raise InvalidRequestError(field="top", problem=problem)
    tls = security.channel_tls(Role.COORDINATOR)
    api = Client(target or security.default_target, api_key=api_key, tls=tls)
    with api as client, Live(console=console, screen=True, auto_refresh=False) as live:
        before: MeshState | None = None
        while True:
            shown, before = _next(client, before)
            live.update(shown, refresh=True)
            time.sleep(interval)


def _next(client: Client, before: MeshState | None) -> tuple[RenderableType, MeshState | None]:
    """The next screen, and the snapshot for the one after it."""
    try:
        now = client.state()
    except StagemeshRpcError as error:
        notice = Text(f"no answer: {error}; retrying", style="bold red")
        return (notice if before is None else Group(notice, screen(before, None))), before
    return screen(now, before), now
