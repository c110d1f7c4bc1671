"""Plans with fewer stages: which ones there are, and whether they fit the workers' memory."""

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.replica_layout import (
    degraded_options,
    fits_memory,
    plan_replica,
    try_plan,
)
from runtime.model_config.model_config import ModelConfig, load_model_config
from tests.coordinator.fake_records import make_identity

OPTIONS = CoordinatorOptions(model="smollm2", pp=3)


@pytest.fixture
def config(toy_folder: Path) -> ModelConfig:
    """Four layers."""
    return load_model_config(toy_folder)


def make_worker(worker_id: str, kind: str, memory_bytes: int) -> WorkerRecord:
    return WorkerRecord(replace(make_identity(worker_id, kind=kind), memory_bytes=memory_bytes))


def test_degraded_options_have_one_stage_less_each_time() -> None:
    degraded = list(degraded_options(replace(OPTIONS, tp=(2,), layers=(1, 1, 2))))
    assert [(each.pp, each.tp_sizes, each.layers) for each in degraded] == [
        (3, (2, 2, 2), (1, 1, 2)),
        (2, (2, 2), None),
        (1, (2,), None),
    ]


def test_degraded_options_of_stages_with_different_ranks_are_the_options_alone() -> None:
    uneven = replace(OPTIONS, tp=(2, 1, 1))
    assert list(degraded_options(uneven)) == [uneven]


def test_try_plan_options_that_the_model_does_not_allow_returns_none(config: ModelConfig) -> None:
    assert try_plan(replace(OPTIONS, pp=9), config, "f00", 0) is None


@pytest.mark.parametrize(
    ("kind", "memory_bytes", "fits"),
    [("cpu", 1250, True), ("cpu", 1200, False), ("cuda", 625, True), ("cuda", 600, False)],
)
def test_fits_memory_shares_the_memory_of_a_node_between_its_cpu_workers_only(
    config: ModelConfig, kind: str, memory_bytes: int, fits: bool
) -> None:
    plan = plan_replica(replace(OPTIONS, pp=2, layers=(2, 2)), config, "f00", 0)
    workers = [make_worker(name, kind, memory_bytes) for name in ("a", "b")]
    assert fits_memory(plan, workers, weights_bytes=1000) is fits


@pytest.mark.parametrize(
    ("memory_bytes", "fits"),
    [(6000, False), (6250, True), (0, True)],
    ids=["too-small", "large-enough", "unknown"],
)
def test_fits_memory_includes_the_requested_kv_cache(
    config: ModelConfig, memory_bytes: int, fits: bool
) -> None:
    plan = plan_replica(replace(OPTIONS, pp=1, kv_memory_bytes=5000), config, "f00", 0)
    workers = [make_worker("a", "cuda", memory_bytes)]
    assert fits_memory(plan, workers, weights_bytes=1000) is fits
