"""The addresses in a hello: only ones that other hosts can reach."""

import pytest

from stage_worker.mesh.hello import HelloFactory


@pytest.mark.parametrize(
    ("address", "metrics_address", "announced"),
    [
        ("127.0.0.1:50100", "127.0.0.1:9101", ("127.0.0.1:50100", "127.0.0.1:9101")),
        ("0.0.0.0:50100", "0.0.0.0:9101", ("127.0.0.1:50100", "127.0.0.1:9101")),
        ("10.0.0.2:50100", "10.0.0.2:9101", ("10.0.0.2:50100", "10.0.0.2:9101")),
        ("10.0.0.2:50100", "127.0.0.1:9101", ("10.0.0.2:50100", "")),
        ("[0::0]:50100", "0:9101", ("127.0.0.1:50100", "127.0.0.1:9101")),
    ],
)
async def test_hello_has_addresses_that_others_reach(
    address: str, metrics_address: str, announced: tuple[str, str]
) -> None:
    introduction = HelloFactory("127.0.0.1:50051", "w", "cpu", address, metrics_address)

    hello = await introduction.hello()

    assert (hello.address, hello.metrics_address) == announced


async def test_hello_unknown_coordinator_name_raises_os_error() -> None:
    introduction = HelloFactory("nowhere.invalid:1", "w", "cpu", "0.0.0.0:1", "127.0.0.1:1")

    with pytest.raises(OSError, match=r"."):
        await introduction.hello()
