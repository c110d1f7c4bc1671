"""What an epoch's limits are made of."""

from coordinator.assignment import Assignment, LoadReport
from coordinator.formation import make_limits
from coordinator.options import CoordinatorOptions
from scheduler import guess_costs


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


def test_limits_take_the_smallest_rank_and_guess_each_stage_by_its_device() -> None:
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
