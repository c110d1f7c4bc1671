"""A replica that makes do with fewer stages, and grows back."""

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.membership.worker_record import WorkerIdentity, WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.degraded_layout import degraded_options, fits_memory, try_plan
from coordinator.planning.replica_layout import plan_replica
from runtime.model_config.model_config import ModelConfig, load_model_config
from tests.coordinator.toy_mesh import Answer, collect, read_one, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPT = (5, 6, 7)
OPTIONS = CoordinatorOptions(model="smollm2", pp=3)


@pytest.fixture
def config(toy_folder: Path) -> ModelConfig:
    """Four layers."""
    return load_model_config(toy_folder)


def worker(worker_id: str, node: str, kind: str, memory_bytes: int) -> WorkerRecord:
    identity = WorkerIdentity(1, "b", worker_id, node, f"{worker_id}:1", kind, "", memory_bytes, 1)
    return WorkerRecord(identity)


async def test_replan_lost_worker_goes_on_with_fewer_stages_and_grows_back(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, pp=3, replan_seconds=0.05) as mesh:
        call = mesh.infer(token_request(PROMPT, max_tokens=400))
        answers: dict[int, Answer] = {}
        await read_one(call, answers)
        await mesh.workers[0].kill()
        state = await mesh.until(lambda state: state.ready and len(state.replicas[0].stages) == 2)
        assert [stage.num_layers for stage in state.replicas[0].stages] == [2, 2]
        await mesh.add_worker("back")
        state = await mesh.until(lambda state: state.ready and len(state.replicas[0].stages) == 3)
        await collect(call, answers)
        assert answers[0].tokens == toy_answer(PROMPT, 400)


async def test_replan_worker_that_comes_back_in_time_keeps_the_plan(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, replan_seconds=60.0) as mesh:
        await mesh.until_ready()
        await mesh.workers[1].kill()
        await mesh.until(lambda state: not state.ready)
        await mesh.add_worker("back")
        state = await mesh.until_ready()
    assert len(state.replicas[0].stages) == 2


async def test_replan_before_the_first_service_nothing_less_is_served(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=1, replan_seconds=0.01) as mesh:
        for _ in range(50):
            state = await mesh.until(lambda state: len(state.workers) == 1)
    assert state.phase == "waiting for workers: 1 of 2"


def test_smaller_options_take_one_stage_away_at_a_time() -> None:
    smaller = list(degraded_options(replace(OPTIONS, tp=(2,), layers=(1, 1, 2))))
    assert [(each.pp, each.tp_sizes, each.layers) for each in smaller] == [
        (3, (2, 2, 2), (1, 1, 2)),
        (2, (2, 2), None),
        (1, (2,), None),
    ]


def test_smaller_options_stages_of_different_ranks_have_no_other_plan() -> None:
    uneven = replace(OPTIONS, tp=(2, 1, 1))
    assert list(degraded_options(uneven)) == [uneven]


def test_try_plan_options_that_the_model_does_not_allow_give_none(config: ModelConfig) -> None:
    assert try_plan(replace(OPTIONS, pp=9), config, "f00", 0) is None


@pytest.mark.parametrize(
    ("kind", "memory_bytes", "fits"),
    [("cpu", 1250, True), ("cpu", 1200, False), ("cuda", 625, True), ("cuda", 600, False)],
)
def test_fits_memory_devices_of_one_node_share_it_on_the_cpu_only(
    config: ModelConfig, kind: str, memory_bytes: int, fits: bool
) -> None:
    plan = plan_replica(replace(OPTIONS, pp=2, layers=(2, 2)), config, "f00", 0)
    workers = [worker(name, "here", kind, memory_bytes) for name in ("a", "b")]
    assert fits_memory(plan, workers, weights_bytes=1000) is fits


def test_fits_memory_asked_for_kv_cache_counts(config: ModelConfig) -> None:
    plan = plan_replica(replace(OPTIONS, pp=1, kv_memory_bytes=5000), config, "f00", 0)
    assert not fits_memory(plan, [worker("a", "here", "cuda", 6000)], weights_bytes=1000)
    assert fits_memory(plan, [worker("a", "here", "cuda", 6250)], weights_bytes=1000)
    assert fits_memory(plan, [worker("a", "here", "cuda", 0)], weights_bytes=1000)
