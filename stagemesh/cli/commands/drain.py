"""Implements `stagemesh drain`: takes workers out of a running mesh without loss."""

import sys
from typing import Annotated

from cyclopts import Parameter

from runtime.rpc.tls import Role
from stagemesh.cli.options.option_types import Dialled, Wait
from stagemesh.cli.options.security import OPERATOR_SECURITY_DEFAULTS, OperatorSecurityOptions
from stagemesh.client.async_client import DEFAULT_MESH
from stagemesh.client.sync_client import Client


def drain(
    worker: Annotated[str, Parameter(negative=())],
    /,
    *,
    target: Dialled = DEFAULT_MESH,
    grace: Wait = 30.0,
    security: OperatorSecurityOptions = OPERATOR_SECURITY_DEFAULTS,
) -> None:
    """Take a worker, or all workers of a replica, out of the mesh without losing requests.

    Their requests finish, move to another replica, or continue on a spare worker that loads the
    same layers first. Then their processes exit with code 0; under stagemesh serve and stagemesh
    node they are restarted. The command returns when the workers have left.

    Parameters
    ----------
    worker
        A worker's address, as in stagemesh status, or its id, or a replica's number.
    target
        The coordinator's --mesh address.
    grace
        Seconds that requests have to finish if no other worker can continue them now; after that
        they wait for the next worker.
    """
    tls = security.channel_tls(Role.COORDINATOR)
    with Client(target, tls=tls) as client:
        workers = client.drain(worker, grace_seconds=grace)
    for address in workers:
        sys.stdout.write(f"{address} has left\n")
