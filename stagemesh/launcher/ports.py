"""Chooses free addresses for processes to listen on, and finds conflicts between addresses.

A chosen port is not kept open: another process may take it in the meantime.
"""

import errno
import socket
from collections.abc import Collection, Mapping
from itertools import combinations

from runtime.addresses import is_unspecified, split_address
from runtime.errors import InvalidRequestError, PortTakenError
from stagemesh.units import join_address

_MAX_PORT = 65535
_NAMES = {"localhost": "127.0.0.1"}


def reserve(address: str, option: str = "", taken: Collection[str] = ()) -> str:
    """Returns `address` with port 0 replaced by a free port that is not in `taken`.

    Raises `PortTakenError` if listening there fails; its message names `option`.
    """
    host, port = split_address(address)
    try:
        while (found := _try_to_listen(host, port)) in _ports(taken) and port == 0:
            pass
        return join_address(host, found)
    except OSError as error:
        raise PortTakenError(address=address, problem=_explain(error, option)) from None


def free_address(first: str, taken: Collection[str]) -> str:
    """Returns the first free address from `first`'s port upwards; for port 0, any free one.

    Skips the ports of `taken` for every host: their owners may not listen yet, and an address of
    all interfaces conflicts with any host.
    """
    if split_address(first)[1] == 0:
        return reserve(first, taken=taken)
    host, first_port = split_address(first)
    for port in range(first_port, _MAX_PORT + 1):
        if port in _ports(taken):
            continue
        try:
            _try_to_listen(host, port)
        except OSError:
            continue
        return join_address(host, port)
    raise PortTakenError(address=first, problem="no port from this one upwards is free")


def check_conflicts(addresses: Mapping[str, str]) -> None:
    """Raises `InvalidRequestError` if two options, given by name, have conflicting addresses."""
    for (option, address), (other, its) in combinations(addresses.items(), 2):
        if _conflict(address, its):
            problem = f"{option} {address} conflicts with {other} {its}; give each its own port"
            raise InvalidRequestError(field="addresses", problem=problem)


def dialable(address: str) -> str:
    """Returns an address at which this machine reaches a listener, also one on all interfaces."""
    host, port = split_address(address)
    if is_unspecified(address):
        host = "::1" if ":" in host else "127.0.0.1"
    return join_address(host, port)


def _conflict(address: str, other: str) -> bool:
    (host, port), (its_host, its_port) = split_address(address), split_address(other)
    is_same_host = _NAMES.get(host, host) == _NAMES.get(its_host, its_host)
    is_any = is_unspecified(address) or is_unspecified(other)
    return port == its_port != 0 and (is_any or is_same_host)


def _ports(addresses: Collection[str]) -> set[int]:
    return {split_address(address)[1] for address in addresses}


def _try_to_listen(host: str, port: int) -> int:
    """Listens briefly; returns the bound port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1)
        bound_port: int = listener.getsockname()[1]
        return bound_port


def _explain(error: OSError, option: str) -> str:
    is_taken = error.errno == errno.EADDRINUSE
    hint = "stop the process that uses it, or choose another port" if is_taken else "choose another"
    with_option = f" with {option} HOST:PORT (port 0 takes a free one)" if option else ""
    return f"{error.strerror or error}; {hint}{with_option}"
