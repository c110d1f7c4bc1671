"""Sizes, layer counts, addresses and durations as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.addresses import split_address
from stagemesh.units import format_seconds, format_size, join_address, parse_layers, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512MiB", 512 * 2**20),
        ("2GiB", 2 * 2**30),
        ("2gib", 2 * 2**30),
        ("1.5 GB", 1_500_000_000),
        (" 7 KiB ", 7168),
        ("3B", 3),
    ],
)
def test_parse_size_with_any_unit_gives_bytes(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1MiB", "2 XiB", "1e9", "2GiB2", "٣MiB"])
def test_parse_size_malformed_raises_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"write for example 512MiB or 2GiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**31, "2.0 GiB"), (2**41, "2.0 TiB")],
)
def test_format_size_picks_the_unit(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20))
def test_parse_layers_of_any_counts_round_trips(counts: list[int]) -> None:
    assert parse_layers(",".join(map(str, counts))) == tuple(counts)


@pytest.mark.parametrize("text", ["", "3,,7", "3;7", "a,b", "3,-1", "3,2.5", "3,²"])
def test_parse_layers_malformed_raises_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"write for example 3,20,7"):
        parse_layers(text)


def test_parse_layers_with_an_empty_stage_is_refused() -> None:
    with pytest.raises(ValueError, match=r"each stage needs at least 1"):
        parse_layers("3,0,7")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0000123, "12 µs"), (0.0123, "12.3 ms"), (4.561, "4.56 s")]
)
def test_format_seconds_picks_the_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_join_address_then_split_gives_host_and_port(host: str) -> None:
    assert split_address(join_address(host, 50050)) == (host, 50050)
