"""Which steps each overlap mode computes in two slices."""

import pytest

from stage_worker.collectives.group_factory import BACKENDS, OVERLAPS, min_split_tokens


@pytest.mark.parametrize("backend", sorted(set(BACKENDS) - {"auto"}))
def test_min_split_tokens_overlap_on_off_or_auto(backend: str) -> None:
    assert OVERLAPS == ("auto", "on", "off")
    assert min_split_tokens("on", backend) == 2
    assert min_split_tokens("off", backend) is None


@pytest.mark.parametrize(("backend", "expected"), [("shm", None), ("gloo", 256), ("nccl", 512)])
def test_min_split_tokens_auto_depends_on_backend(backend: str, expected: int | None) -> None:
    assert min_split_tokens("auto", backend) == expected
