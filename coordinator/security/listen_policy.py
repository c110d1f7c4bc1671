"""Which addresses may be listened on and dialled without authentication: loopback only.

Beyond loopback, APIs need API keys and the mesh needs certificates, unless the options allow less.
"""

from coordinator.options import CoordinatorOptions
from coordinator.security.api_keys import read_key_file
from runtime.addresses import is_loopback, is_unspecified
from runtime.errors import UnprotectedApiError, WorkerRefusedError
from runtime.rpc.tls import DialPolicy, check_mesh_address


def check_listen_addresses(options: CoordinatorOptions) -> None:
    """Refuses listeners beyond loopback that have no authentication, and unreadable key files.

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
    """Raises `WorkerRefusedError` for an address that the coordinator must not dial.

    0.0.0.0 and :: would reach the coordinator's own machine. A mesh on loopback authenticates no
    worker, so a hello with another address could make the coordinator connect to any host.
    """
    if is_unspecified(address):
        reason = (
            "that stands for all interfaces of a machine, so the worker cannot be reached there; "
            "give --advertise, or else --listen, an address of the worker's machine"
        )
        raise WorkerRefusedError(worker=address, reason=reason)
    if not dial_policy.includes(address):
        reason = (
            "this mesh has no TLS and stays on loopback; give --tls-dir everywhere, or start the "
            "coordinator with --insecure-mesh in a network that you trust"
        )
        raise WorkerRefusedError(worker=address, reason=reason)
