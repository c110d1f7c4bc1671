"""Owns `stagemesh top`: a running mesh in the terminal, live."""

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
from stagemesh.display.top import picture


def top(
    *,
    target: Dialled | None = None,
    api_key: ApiKey = None,
    interval: Annotated[float, Parameter(validator=Number(gt=0))] = 1.0,
    security: OperatorSecurityOptions = OPERATOR_SECURITY_DEFAULTS,
) -> None:
    """Watch a mesh: replicas, stages, queue, tokens per second; Ctrl-C ends it.

    Busy and bubble are shares of the time between two pictures. A mesh that does not answer is
    asked again until it does.

    Parameters
    ----------
    target
        The API of the mesh or the coordinator's --mesh address. [default: 127.0.0.1:50050, or
        127.0.0.1:50051 with --tls-dir]
    api_key
        The key that the API asks for; others cannot see its environment variable.
    interval
        Seconds from one picture to the next.
    """
    console = Console()
    if not console.is_terminal:
        problem = "needs a terminal; for programs there is `stagemesh status --json`"
        raise InvalidRequestError(field="top", problem=problem)
    tls = security.channel_tls(Role.COORDINATOR)
    api = Client(target or security.default_target, api_key=api_key, tls=tls)
    with api as client, Live(console=console, screen=True, auto_refresh=False) as live:
        before: MeshState | None = None
        while True:
            screen, before = _next(client, before)
            live.update(screen, refresh=True)
            time.sleep(interval)


def _next(client: Client, before: MeshState | None) -> tuple[RenderableType, MeshState | None]:
    """One picture and the snapshot that the next one is compared with."""
    try:
        now = client.state()
    except StagemeshRpcError as error:
        lost = Text(f"no answer: {error}; asking again", style="bold red")
        return (lost if before is None else Group(lost, picture(before, None))), before
    return picture(now, before), now
