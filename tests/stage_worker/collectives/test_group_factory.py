"""When steps are computed in two slices."""

import pytest

from stage_worker.collectives.group_factory import BACKENDS, OVERLAPS, min_split_tokens


@pytest.mark.parametrize("backend", sorted(set(BACKENDS) - {"auto"}))
def test_min_split_tokens_of_each_overlap_is_all_none_or_what_pays(backend: str) -> None:
    assert OVERLAPS == ("auto", "on", "off")
    assert min_split_tokens("on", backend) == 2
    assert min_split_tokens("off", backend) is None


@pytest.mark.parametrize(("backend", "expected"), [("shm", None), ("gloo", 256), ("nccl", 512)])
def test_min_split_tokens_by_default_is_where_it_should_pay(
    backend: str, expected: int | None
) -> None:
    assert min_split_tokens("auto", backend) == expected
