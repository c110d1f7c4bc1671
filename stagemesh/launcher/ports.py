"""Owns addresses before a process takes them: which are free, and where to dial them.

It keeps none open.
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
    """`address` with port 0 replaced by a free one, which is none of those that are `taken`.

    Raises `PortTakenError` if it cannot be listened on, with the `option` that names another.
    """
    host, port = split_address(address)
    try:
        while (found := _try_to_listen(host, port)) in _ports(taken) and port == 0:
            pass
        return join_address(host, found)
    except OSError as error:
        raise PortTakenError(address=address, problem=_explain(error, option)) from None


def free_address(first: str, taken: Collection[str]) -> str:
    """The first address from `first`'s port up that is free; port 0: any that is.

    Ports of those that are `taken` are left out, whatever their host: they may not be listened on
    yet, and where one of two stands for all interfaces, they are the same.
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
    raise PortTakenError(address=first, problem="no port from there up is free")


def check_apart(addresses: Mapping[str, str]) -> None:
    """Raises `InvalidRequestError` where two options, by their names, are one place."""
    for (option, address), (other, its) in combinations(addresses.items(), 2):
        if _is_same_place(address, its):
            problem = f"{option} {address} and {other} {its} are one place; give each its own port"
            raise InvalidRequestError(field="addresses", problem=problem)


def dialable(address: str) -> str:
    """Where a process of this machine reaches what listens on `address`, also on any interface."""
    host, port = split_address(address)
    if is_unspecified(address):
        host = "::1" if ":" in host else "127.0.0.1"
    return join_address(host, port)


def _is_same_place(address: str, other: str) -> bool:
    (host, port), (its_host, its_port) = split_address(address), split_address(other)
    is_same_host = _NAMES.get(host, host) == _NAMES.get(its_host, its_host)
    is_any = is_unspecified(address) or is_unspecified(other)
    return port == its_port != 0 and (is_any or is_same_host)


def _ports(addresses: Collection[str]) -> set[int]:
    return {split_address(address)[1] for address in addresses}


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
