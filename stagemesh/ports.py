"""Owns addresses before a process takes them: which are free, and where to dial them.

It keeps none open.
"""

import errno
import socket
from collections.abc import Collection

from runtime.errors import PortTakenError
from runtime.rpc import split_address
from stagemesh.values import join_address

_MAX_PORT = 65535
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def reserve(address: str, option: str = "") -> str:
    """`address` with port 0 replaced by a free one.

    Raises `PortTakenError` if it cannot be listened on, with the `option` that names another.
    """
    host, port = split_address(address)
    try:
        return join_address(host, _try_to_listen(host, port))
    except OSError as error:
        raise PortTakenError(address=address, problem=_explain(error, option)) from None


def free_address(first: str, taken: Collection[str]) -> str:
    """The first address from `first`'s port up that is free and not `taken`; port 0: any free."""
    if split_address(first)[1] == 0:
        return reserve(first)
    host, first_port = split_address(first)
    for port in range(first_port, _MAX_PORT + 1):
        address = join_address(host, port)
        if address in taken:
            continue
        try:
            _try_to_listen(host, port)
        except OSError:
            continue
        return address
    raise PortTakenError(address=first, problem="no port from there up is free")


def dialable(address: str) -> str:
    """Where a process of this machine reaches what listens on `address`, also on any interface."""
    host, port = split_address(address)
    return join_address(_LOOPBACK.get(host, host), port)


def _try_to_listen(host: str, port: int) -> int:
    """Listens for a moment; the port that it got."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1)
        bound_port: int = listener.getsockname()[1]
        return bound_port


def _explain(error: OSError, option: str) -> str:
    is_taken = error.errno == errno.EADDRINUSE
    hint = "stop what uses it or choose another port" if is_taken else "choose another address"
    with_option = f" with {option} HOST:PORT (port 0 takes a free one)" if option else ""
    return f"{error.strerror or error}; {hint}{with_option}"
