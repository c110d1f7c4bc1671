"""The alternating computation of a step's slices."""

from collections.abc import Generator

import torch
from torch import Tensor

from stage_worker.model.interleaving import run_alternately


def count(name: str, log: list[str], num_sums: int) -> Generator[None, None, Tensor]:
    for number in range(num_sums):
        log.append(f"{name} begins {number}")
        yield
        log.append(f"{name} finishes {number}")
    return torch.full((1, 2), float(ord(name)))


def test_run_alternately_two_slices_overlap_sums_with_computation() -> None:
    log: list[str] = []
    whole_TH = run_alternately([count("a", log, 2), count("b", log, 2)])
    assert log == [
        "a begins 0",
        "b begins 0",
        "a finishes 0",
        "a begins 1",
        "b finishes 0",
        "b begins 1",
        "a finishes 1",
        "b finishes 1",
    ]
    assert whole_TH.tolist() == [[97.0, 97.0], [98.0, 98.0]]


def test_run_alternately_one_slice_finishes_each_sum_at_once() -> None:
    log: list[str] = []
    assert run_alternately([count("a", log, 2)]).tolist() == [[97.0, 97.0]]
    assert log == ["a begins 0", "a finishes 0", "a begins 1", "a finishes 1"]
