"""Implements `stagemesh certs`: creates a mesh's CA and the certificates of its nodes."""

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
    """Create the certificates of one node of a mesh and, the first time, the mesh's own CA.

    Copy FOLDER/NODE to the node, and start its processes with --tls-dir. Keep FOLDER/ca.key secret:
    its owner can join the mesh.

    Parameters
    ----------
    folder
        Folder of the certificate authority (CA); created if it does not exist.
    node
        Name of the node and of its folder.
    role
        Role of the node's processes: coordinator, worker, or client for an operator's commands;
        repeat the option for several roles.
    host
        Host name or address at which clients reach the node's APIs, if these use the certificate;
        repeat the option for several. [default: loopback]
    days
        Days for which the certificates are valid.
    renew
        Replace existing certificates. Running processes use the new ones at their next connection.
    """
    # Imported here: other commands need no second copy of OpenSSL.
    from stagemesh.certificates import LOCAL_HOSTS, NodeRequest, make_certificates

    request = NodeRequest(node, role, (*LOCAL_HOSTS, *host), timedelta(days=days))
    for path in make_certificates(folder, request, is_renewal=renew):
        sys.stdout.write(f"{path}\n")
