"""Owns the rule that nothing serves other machines without asking who they are, unless told to.

Doors ask for keys, the mesh for certificates.
"""

from coordinator.api_keys import read_key_file
from coordinator.options import CoordinatorOptions
from runtime.errors import OpenDoorError
from runtime.tls import check_mesh_address, is_loopback


def check_access(options: CoordinatorOptions) -> None:
    """Refuses listeners that would serve anybody without a word, and keys that cannot be read.

    Raises `OpenDoorError`, `InsecureMeshError` or `KeyFileError`.
    """
    check_mesh_address(options.mesh, "--mesh", options.mesh_tls, options.is_mesh_insecure)
    if options.api_keys is not None:
        read_key_file(options.api_keys)
    elif not options.allow_anonymous:
        for address in (options.grpc, options.http):
            if not is_loopback(address):
                raise OpenDoorError(address=address)
