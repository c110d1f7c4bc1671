"""Owns the rule that a door which other machines can reach asks for keys, unless told otherwise."""

from ipaddress import ip_address

from coordinator.api_keys import read_key_file
from coordinator.options import CoordinatorOptions
from runtime.errors import OpenDoorError
from runtime.rpc import split_address


def check_access(options: CoordinatorOptions) -> None:
    """Refuses doors that would serve anybody without a word, and keys that cannot be read.

    Raises `OpenDoorError` or `KeyFileError`.
    """
    if options.api_keys is not None:
        read_key_file(options.api_keys)
    elif not options.allow_anonymous:
        for address in (options.grpc, options.http):
            if not _is_loopback(split_address(address)[0]):
                raise OpenDoorError(address=address)


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches it; a name may be anybody's, but for the one."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
