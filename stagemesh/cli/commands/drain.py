"""Owns `stagemesh drain`: workers that leave a running mesh without loss."""

import sys
from typing import Annotated

from cyclopts import Parameter

from runtime.rpc.tls import Role
from stagemesh.cli.options.option_types import Dialled, Wait
from stagemesh.cli.options.security import OPERATOR_SECURITY_DEFAULTS, OperatorSecurityOptions
from stagemesh.client.async_client import DEFAULT_MESH
from stagemesh.client.sync_client import Client


def drain(
    who: Annotated[str, Parameter(negative=())],
    /,
    *,
    target: Dialled = DEFAULT_MESH,
    grace: Wait = 30.0,
    security: OperatorSecurityOptions = OPERATOR_SECURITY_DEFAULTS,
) -> None:
    """Have a worker, or all workers of a replica, leave without losing a request.

    What they run goes on with another replica, or with a spare worker that loads their part first,
    or ends by itself. Then their processes exit with 0; stagemesh serve starts new ones in their
    place. Returns when they have left.

    Parameters
    ----------
    who
        A worker's address, as stagemesh status shows it, or its id, or a replica's number.
    target
        The coordinator's --mesh address.
    grace
        Seconds that requests may take to end where nothing else can go on with them now; those
        that do not wait for the next worker.
    """
    tls = security.channel_tls(Role.COORDINATOR)
    with Client(target, tls=tls) as client:
        workers = client.drain(who, grace_seconds=grace)
    for worker in workers:
        sys.stdout.write(f"{worker} has left\n")
