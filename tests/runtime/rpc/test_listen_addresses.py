"""Addresses: listening at them, and reading them."""

import pytest

from runtime.addresses import split_address
from runtime.errors import InvalidRequestError, PortTakenError
from runtime.rpc.channels import bind, make_server


async def test_bind_to_taken_port_raises_with_the_address() -> None:
    first = make_server()
    address = await bind(first, "127.0.0.1:0")
    await first.start()
    try:
        with pytest.raises(PortTakenError, match=address):
            await bind(make_server(), address)
    finally:
        await first.stop(0)


async def test_bind_to_a_foreign_address_is_refused_with_the_reason() -> None:
    with pytest.raises(PortTakenError, match="Cannot assign requested address"):
        await bind(make_server(), "192.0.2.1:50050")


@pytest.mark.parametrize(
    "address",
    ["", "localhost", "localhost:", ":50050", "host:70000", "h:x", "a..b:1", f"{'a' * 64}.org:1"],
)
def test_split_address_of_malformed_raises(address: str) -> None:
    with pytest.raises(InvalidRequestError, match="HOST:PORT"):
        split_address(address)


def test_split_address_of_ipv6_drops_the_brackets() -> None:
    assert split_address("[::1]:50050") == ("::1", 50050)


def test_split_address_of_the_longest_label_and_the_root_is_taken() -> None:
    assert split_address(f"{'a' * 63}.org.:1") == (f"{'a' * 63}.org.", 1)
