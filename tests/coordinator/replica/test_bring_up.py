"""The limits of a replica, and the devices that its ranks need."""

import pytest

from coordinator.membership.assignment import Assignment, LoadReport
from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.replica.bring_up import check_devices, make_limits
from runtime.errors import WorkerRefusedError
from scheduler import guess_costs
from tests.coordinator.fake_records import make_worker


def make_assignment(stage: int, rank: int) -> Assignment:
    return Assignment(
        replica=0,
        stage=stage,
        num_stages=2,
        rank=rank,
        tp_size=2,
        first_layer=4 * stage,
        num_layers=4,
        model="m",
        weights_fingerprint="f",
        dtype="bfloat16",
        block_size=16,
        max_model_len=256,
        kv_memory_bytes=0,
    )


def make_report(num_kv_blocks: int, weights_bytes: int) -> LoadReport:
    return LoadReport(num_kv_blocks, weights_bytes, 0, 1.0, "f")


def test_make_limits_uses_the_smallest_rank_and_estimates_each_stage_by_its_device() -> None:
    assignments = [make_assignment(stage, rank) for stage in (0, 1) for rank in (0, 1)]
    reports = [make_report(blocks, 10**9 * blocks) for blocks in (40, 50, 30, 60)]
    limits = make_limits(
        CoordinatorOptions(model="m"), assignments, reports, ["cuda", "cuda", "cpu", "cpu"]
    )
    assert limits.num_blocks == 30
    assert limits.guessed_costs == (
        guess_costs("cuda", 40 * 10**9, bytes_per_weight=2, num_layers=4),
        guess_costs("cpu", 30 * 10**9, bytes_per_weight=2, num_layers=4),
    )


def make_ranks(*kinds: str) -> list[WorkerRecord]:
    """A worker with a device of each kind, by stage and rank: two stages of two ranks."""
    return [make_worker(f"w{rank}", kind=kind) for rank, kind in enumerate(kinds)]


PARTS = [make_assignment(stage, rank) for stage in (0, 1) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("backend", "kinds", "expected"),
    [
        (
            "nccl",
            ("cuda", "cuda", "cpu", "cpu"),
            "worker w2:1 refused: --backend nccl needs cuda devices for the ranks of stage 1, "
            "and this worker's is cpu; leave --backend at auto, or give the stage workers on cuda",
        ),
        ("shm", ("cuda", "cuda", "cpu", "cpu"), "--backend shm needs cpu devices"),
        ("gloo", ("cpu", "cuda", "cpu", "cpu"), "worker w1:1 refused: --backend gloo needs cpu"),
        (
            "auto",
            ("cuda", "cpu", "cpu", "cpu"),
            "the ranks of stage 0 need devices of one kind, rank 0 has cuda, and this worker's",
        ),
    ],
)
def test_check_devices_that_do_not_fit_the_backend_names_both(
    backend: str, kinds: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(WorkerRefusedError) as caught:
        check_devices(backend, PARTS, make_ranks(*kinds))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("backend", "kinds"),
    [
        ("auto", ("cuda", "cuda", "cpu", "cpu")),
        ("nccl", ("cuda", "cuda", "cuda", "cuda")),
        ("gloo", ("cpu", "cpu", "cpu", "cpu")),
        ("auto", ("paced", "paced", "paced", "paced")),
    ],
)
def test_check_devices_that_fit_raises_nothing(backend: str, kinds: tuple[str, ...]) -> None:
    check_devices(backend, PARTS, make_ranks(*kinds))
