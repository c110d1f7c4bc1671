"""Owns the rule that nothing serves other machines without asking who they are, unless told to.

APIs ask for keys, the mesh for certificates.
"""

from coordinator.options import CoordinatorOptions
from coordinator.security.api_keys import read_key_file
from runtime.addresses import is_loopback, is_unspecified
from runtime.errors import UnprotectedApiError, WorkerRefusedError
from runtime.rpc.tls import DialPolicy, check_mesh_address


def check_listen_addresses(options: CoordinatorOptions) -> None:
    """Refuses listeners that would serve anybody without a word, and keys that cannot be read.

    Raises `UnprotectedApiError`, `InsecureMeshError` or `KeyFileError`.
    """
    check_mesh_address(options.mesh, "--mesh", options.mesh_tls, options.is_mesh_insecure)
    if options.api_keys is not None:
        read_key_file(options.api_keys)
    elif not options.allow_anonymous:
        for address in (options.grpc, options.http):
            if not is_loopback(address):
                raise UnprotectedApiError(address=address)


def check_worker_address(address: str, dial_policy: DialPolicy) -> None:
    """Raises `WorkerRefusedError` for an address that this mesh dials for nobody.

    One that stands for all interfaces would be the coordinator's own machine. And a mesh for
    loopback alone asks nobody who they are: whoever joins it could have it dial anything that this
    machine reaches.
    """
    if is_unspecified(address):
        reason = (
            "that stands for all interfaces of a machine, so nobody can reach the worker there; "
            "give --advertise, or else --listen, an address of the worker's machine"
        )
        raise WorkerRefusedError(worker=address, reason=reason)
    if not dial_policy.includes(address):
        reason = (
            "this mesh has no TLS and stays on loopback; give --tls-dir everywhere, or start the "
            "coordinator with --insecure-mesh in a network that you trust"
        )
        raise WorkerRefusedError(worker=address, reason=reason)
