"""What an address means to others, however it is written."""

import pytest

from runtime.addresses import is_loopback, is_unspecified


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0:5", "[::]:5", "0:5", "0.0:5", "[0:0::0]:5", "[::ffff:0.0.0.0]:5"],
)
def test_address_of_all_interfaces_is_unspecified(address: str) -> None:
    assert is_unspecified(address)
    assert not is_loopback(address)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:5", "127.1:5", "[::1]:5", "localhost:5", "[::ffff:127.0.0.1]:5"]
)
def test_address_of_this_machine_alone_is_loopback(address: str) -> None:
    assert is_loopback(address)
    assert not is_unspecified(address)


@pytest.mark.parametrize("address", ["10.0.0.1:5", "[fe80::1%eth0]:5", "a.example.org:5", "x:0"])
def test_address_that_others_reach_is_neither(address: str) -> None:
    assert not is_loopback(address)
    assert not is_unspecified(address)
