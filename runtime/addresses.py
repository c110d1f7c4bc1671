"""What an address HOST:PORT means to others; how one is written is `split_address` in `rpc.py`.

Names are not looked up.
"""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from runtime.rpc.channels import split_address


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches it; a name may be anybody's, but for the one."""
    host, _ = split_address(address)
    ip = _ip(host)
    return host == "localhost" if ip is None else ip.is_loopback


def is_unspecified(address: str) -> bool:
    """Whether it stands for all interfaces, as 0.0.0.0 and [::] do: to listen on, not to reach."""
    host, _ = split_address(address)
    ip = _ip(host)
    return ip is not None and ip.is_unspecified


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    """As the operating system reads it: also 0 and 127.1, and IPv4 written as IPv6."""
    try:
        ip = ip_address(host)
    except ValueError:
        try:
            return IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return mapped or ip
