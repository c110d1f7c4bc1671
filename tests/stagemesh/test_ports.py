"""The choice of listening addresses before processes take them."""

import socket
from collections.abc import Iterator

import pytest

from runtime.errors import PortTakenError
from stagemesh.ports import dialable, free_address, reserve


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of 127.0.0.1 that something listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_reserve_with_port_zero_names_a_free_port() -> None:
    host, _, port = reserve("127.0.0.1:0").rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


def test_reserve_of_a_free_address_keeps_it() -> None:
    address = reserve("127.0.0.1:0")
    assert reserve(address) == address


def test_reserve_of_a_taken_port_says_which(taken_port: int) -> None:
    with pytest.raises(PortTakenError, match=f"127.0.0.1:{taken_port}"):
        reserve(f"127.0.0.1:{taken_port}")


def test_reserve_of_a_foreign_host_says_so() -> None:
    with pytest.raises(
        PortTakenError, match=r"192\.0\.2\.1:50050.* choose another address with --grpc"
    ):
        reserve("192.0.2.1:50050", "--grpc")


def test_free_address_skips_what_is_taken(taken_port: int) -> None:
    address = free_address(f"127.0.0.1:{taken_port}", taken=())
    assert int(address.rpartition(":")[2]) > taken_port
    assert free_address(f"127.0.0.1:{taken_port}", taken={address}) != address


@pytest.mark.parametrize(
    ("listening", "dialled"),
    [
        ("0.0.0.0:5", "127.0.0.1:5"),
        ("[::]:5", "[::1]:5"),
        ("10.0.0.1:5", "10.0.0.1:5"),
        ("localhost:5", "localhost:5"),
    ],
)
def test_dialable_of_any_interface_is_loopback(listening: str, dialled: str) -> None:
    assert dialable(listening) == dialled
