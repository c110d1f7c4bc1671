"""Owns `stagemesh certs`: a mesh's authority and its nodes' certificates, made on this machine."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from runtime.rpc.tls import Role
from stagemesh.cli.options.option_types import Flag, between


def certs(
    folder: Path,
    /,
    *,
    node: str,
    role: Annotated[tuple[Role, ...], Parameter(negative=())],
    host: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    days: Annotated[int, between(1, 3650)] = 365,
    renew: Annotated[bool, Flag] = False,
) -> None:
    """Make the certificates of one node of a mesh, and the mesh's authority the first time.

    FOLDER/NODE is what the node needs: give its processes --tls-dir with it. FOLDER/ca.key stays:
    whoever has it can join the mesh.

    Parameters
    ----------
    folder
        Where the authority is, or will be made.
    node
        Name of the node, and of its folder.
    role
        What the node's processes are: coordinator, worker, or client for an operator's commands;
        give it several times for several.
    host
        A name or address at which clients reach the node's APIs, if they show this certificate;
        give it several times for several. [default: this machine's loopback]
    days
        How long the certificates are valid.
    renew
        Replace certificates that are there. Running processes use them from their next connection.
    """
    # Here, so that other commands do not load a second copy of OpenSSL.
    from stagemesh.certificates import LOCAL_HOSTS, NodeRequest, make_certificates

    request = NodeRequest(node, role, (*LOCAL_HOSTS, *host), timedelta(days=days))
    for path in make_certificates(folder, request, is_renewal=renew):
        sys.stdout.write(f"{path}\n")
