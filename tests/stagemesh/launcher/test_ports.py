"""The choice of free addresses, and conflicts between addresses."""

import socket
from collections.abc import Iterator

import pytest

from runtime.errors import InvalidRequestError, PortTakenError
from stagemesh.launcher.ports import check_conflicts, dialable, free_address, reserve


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of 127.0.0.1 that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_reserve_with_port_zero_names_a_free_port() -> None:
    host, _, port = reserve("127.0.0.1:0").rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


def test_reserve_of_a_free_address_returns_it() -> None:
    address = reserve("127.0.0.1:0")
    assert reserve(address) == address


def test_reserve_of_a_used_port_raises_with_the_address(taken_port: int) -> None:
    with pytest.raises(PortTakenError, match=f"127.0.0.1:{taken_port}"):
        reserve(f"127.0.0.1:{taken_port}")


def test_reserve_of_a_foreign_host_raises_with_the_option() -> None:
    with pytest.raises(PortTakenError, match=r"192\.0\.2\.1:50050.* choose another with --grpc"):
        reserve("192.0.2.1:50050", "--grpc")


def test_free_address_skips_used_and_taken_ports(taken_port: int) -> None:
    address = free_address(f"127.0.0.1:{taken_port}", taken=())
    assert int(address.rpartition(":")[2]) > taken_port
    assert free_address(f"127.0.0.1:{taken_port}", taken={address}) != address


def test_free_address_skips_a_port_taken_on_another_interface() -> None:
    address = reserve("127.0.0.1:0")
    port = int(address.rpartition(":")[2])
    assert free_address(address, taken={f"0.0.0.0:{port}"}) != address


def test_free_address_with_port_zero_skips_taken_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports = iter((5, 5, 7))
    monkeypatch.setattr("stagemesh.launcher.ports._try_to_listen", lambda host, port: next(ports))
    assert free_address("127.0.0.1:0", taken={"127.0.0.1:5"}) == "127.0.0.1:7"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("127.0.0.1:5", "127.0.0.1:5"),
        ("localhost:5", "127.0.0.1:5"),
        ("0.0.0.0:5", "127.0.0.1:5"),
        ("10.0.0.1:5", "[::]:5"),
    ],
)
def test_check_conflicts_conflicting_addresses_raise_with_both_options(
    first: str, second: str
) -> None:
    with pytest.raises(InvalidRequestError, match=r"--grpc .* conflicts with --http .*own port"):
        check_conflicts({"--grpc": first, "--http": second, "--mesh": "127.0.0.1:6"})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("127.0.0.1:5", "127.0.0.1:6"),
        ("127.0.0.1:5", "10.0.0.1:5"),
        ("127.0.0.1:5", "[::1]:5"),
    ],
)
def test_check_conflicts_distinct_addresses_pass(first: str, second: str) -> None:
    check_conflicts({"--grpc": first, "--http": second})


@pytest.mark.parametrize(
    ("listening", "dialled"),
    [
        ("0.0.0.0:5", "127.0.0.1:5"),
        ("[::]:5", "[::1]:5"),
        ("[0::0]:5", "[::1]:5"),
        ("10.0.0.1:5", "10.0.0.1:5"),
        ("localhost:5", "localhost:5"),
    ],
)
def test_dialable_address_of_all_interfaces_is_loopback(listening: str, dialled: str) -> None:
    assert dialable(listening) == dialled
