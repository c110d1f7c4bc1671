"""The addresses that tests give to the processes they start."""

import socket

from stagemesh.launcher.ports import reserve
from tests.integration.processes import new_address


def test_new_addresses_are_free_and_never_the_same() -> None:
    addresses = [new_address() for _ in range(300)]
    assert len(set(addresses)) == 300
    assert [reserve(address) for address in addresses] == addresses


def test_new_address_passes_over_a_port_that_is_taken() -> None:
    first, second = [int(new_address().split(":")[1]) for _ in range(2)]
    following = 2 * second - first
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", following))
        taken.listen()
        assert new_address() != f"127.0.0.1:{following}"
