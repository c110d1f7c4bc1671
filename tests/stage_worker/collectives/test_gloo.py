"""Two processes whose ranks exchange tensors with gloo."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch

from runtime.errors import InvalidRequestError
from runtime.protocol.step import Step
from stage_worker.collectives.group_factory import GroupSpec, check_backend, open_group
from stage_worker.collectives.shared_file import remove_stale_files, segment_path
from stage_worker.collectives.torch_group import TorchGroup
from tests.stage_worker.collectives.rank_threads import open_groups, run_ranks
from tests.tiny_models import make_tiny_llama

PROGRAM = Path(__file__).with_name("rank_process.py")
ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 60


@contextmanager
def started(
    folder: Path, name: str, rank: int, scenario: str, overlap: str = "auto"
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PROGRAM), str(folder), name, str(rank), scenario, overlap]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def run_both(folder: Path, scenario: str, overlap: str = "auto") -> list[Any]:
    """What each rank printed; the input of both stays open until both have printed or exited."""
    name = f"test-gloo-{uuid4().hex}"
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(started(folder, name, rank, scenario, overlap)) for rank in range(2)
        ]
        answers = [rank.stdout.readline() if rank.stdout else "" for rank in ranks]
        for number, (rank, answer) in enumerate(zip(ranks, answers, strict=True)):
            _, errors = rank.communicate(timeout=TIMEOUT_SECONDS)
            # Shown if the test fails.
            report = f"exited with {rank.returncode} after {answer!r}: {errors}"
            sys.stderr.write(f"rank {number} {report}\n")
    # A rank that connects while its group is closed may create its store again.
    remove_stale_files()
    path = segment_path(name)
    assert not list(path.parent.glob(f"{path.name}*"))
    return [json.loads(text) if text else None for text in answers]


def test_gloo_collectives_of_two_processes_add_up_and_gather(tmp_path: Path) -> None:
    whole = torch.arange(14.0).view(2, 7).tolist()
    total = [[3.0] * 3] * 2
    assert run_both(tmp_path, "collectives") == [[total, whole, whole], [total, whole, None]]


def test_gloo_concurrent_sums_do_not_mix(tmp_path: Path) -> None:
    sums = [[3.0] * 3, [2.0], [[30.0] * 2] * 2]
    assert run_both(tmp_path, "sums") == [sums, sums]


@pytest.mark.parametrize("overlap", ["auto", "on"])
def test_gloo_model_of_two_processes_matches_transformers(tmp_path: Path, overlap: str) -> None:
    model = make_tiny_llama(tmp_path, "nine_of_three")
    first, second = run_both(tmp_path, "model", overlap)
    assert second == []
    assert len(first) == 2
    for prompt, top_ids, top_logprobs in first:
        expected_V = model.logprobs(tuple(prompt))[-1]
        actual_V = torch.empty_like(expected_V)
        actual_V[top_ids] = torch.tensor(top_logprobs)
        assert (actual_V - expected_V).abs().max() <= 1e-4 * expected_V.abs().max()


def test_gloo_abort_ends_the_other_ranks_wait_with_the_cause(tmp_path: Path) -> None:
    first, _ = run_both(tmp_path, "aborts")
    assert first["cause"] == "sender_gone"


def test_gloo_killed_rank_ends_the_other_ranks_wait(tmp_path: Path) -> None:
    first, _ = run_both(tmp_path, "killed")
    assert first["cause"] == "collective"
    assert "an all-reduce failed" in first["text"]


def test_gloo_rank_killed_before_it_connects_ends_the_other_ranks_wait(
    tmp_path: Path,
) -> None:
    (cause, seconds), _ = run_both(tmp_path, "gone")
    assert cause == "sender_gone"
    assert seconds < TIMEOUT_SECONDS / 10


def test_gloo_close_with_a_stopped_peer_does_not_wait(tmp_path: Path) -> None:
    """gloo itself would block the device until the collective timeout."""
    name = f"test-gloo-{uuid4().hex}"
    with (
        started(tmp_path, name, 0, "stopped") as first,
        started(tmp_path, name, 1, "stopped"),
    ):
        assert first.stdout is not None
        assert json.loads(first.stdout.readline()) < TIMEOUT_SECONDS / 10
        assert first.stdin is not None
        first.stdin.close()
        first.wait(TIMEOUT_SECONDS / 10)


def test_gloo_failed_connection_raises_its_cause_on_every_rank() -> None:
    groups = open_groups(2, backend="gloo")

    def make(store: object) -> object:
        raise OSError("no such network")

    for group in groups:
        assert isinstance(group, TorchGroup)
        group._make_connection = make  # type: ignore[method-assign]
    outs = run_ranks([partial(group.agree, Step(0), None) for group in groups])
    for group in groups:
        group.close()
    assert [str(out) for out in outs] == ["no such network"] * 2


@pytest.mark.parametrize(
    ("backend", "device", "expected"),
    [("auto", "cpu", "shm"), ("auto", "cuda:1", "nccl"), ("gloo", "cpu", "gloo")],
)
def test_check_backend_auto_resolves_by_device(backend: str, device: str, expected: str) -> None:
    assert check_backend(backend, device) == expected


@pytest.mark.parametrize(
    ("backend", "device"), [("mpi", "cpu"), ("nccl", "cpu"), ("shm", "cuda"), ("gloo", "cuda")]
)
def test_open_group_unsuitable_backend_is_refused(backend: str, device: str) -> None:
    with pytest.raises(InvalidRequestError, match="backend"):
        open_group(GroupSpec("unfit", 0, 2, backend=backend, device=device))
