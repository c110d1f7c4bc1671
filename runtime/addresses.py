"""Parses addresses HOST:PORT and classifies loopback and unspecified ones; resolves no names."""

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from runtime.errors import InvalidRequestError

# Excludes what gRPC reads as a URI scheme, such as unix:PATH. DNS limits a label to 63 characters;
# looking up a longer one raises UnicodeError.
_LABEL = r"[\w-]{1,63}"
_HOST: Final = re.compile(rf"\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|{_LABEL}(\.{_LABEL})*\.?", re.ASCII)
_PORT: Final = re.compile(r"[0-9]{1,5}")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, `[HOST]:PORT` for IPv6; raises `InvalidRequestError`."""
    host, _, port = address.rpartition(":")
    if not (_HOST.fullmatch(host) and _PORT.fullmatch(port) and int(port) < 2**16):
        raise InvalidRequestError(
            field="address", problem=f"{address!r} is not HOST:PORT, such as 127.0.0.1:50050"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether only this machine can connect; of names, only `localhost` counts as loopback."""
    host, _ = split_address(address)
    ip = _ip(host)
    return host == "localhost" if ip is None else ip.is_loopback


def is_unspecified(address: str) -> bool:
    """Whether it means all interfaces (0.0.0.0, [::]): valid to listen on, not to dial."""
    host, _ = split_address(address)
    ip = _ip(host)
    return ip is not None and ip.is_unspecified


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    """Parsed as the operating system does: also 0, 127.1 and IPv4-mapped IPv6; None for a name."""
    try:
        ip = ip_address(host)
    except ValueError:
        try:
            return IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return mapped or ip
