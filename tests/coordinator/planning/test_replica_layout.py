"""Which layers each rank gets, and which options a model refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.replica_layout import (
    head_cost_in_layers,
    plan_replica,
    resolve_dtype,
    served_len,
)
from runtime.errors import (
    InvalidRequestError,
    LayerSplitError,
    NeverFitsError,
    RankCountError,
    TooManyRanksError,
    TooManyStagesError,
)
from runtime.model_config.layer_config import ExpertsConfig
from runtime.model_config.model_config import ModelConfig, load_model_config
from tests.coordinator.fake_records import make_identity

OPTIONS = CoordinatorOptions(model="smollm2", pp=2)


@pytest.fixture
def config(toy_folder: Path) -> ModelConfig:
    """Four layers of 16 x 16, two heads each."""
    return load_model_config(toy_folder)


def test_head_cost_is_half_its_weight_in_layers(config: ModelConfig) -> None:
    attention, mlp = 4 * 16 * 16, 3 * 16 * 32
    assert head_cost_in_layers(config) == pytest.approx(0.5 * 97 * 16 / (attention + mlp))


def test_head_cost_in_layers_of_experts_counts_them_all(config: ModelConfig) -> None:
    experts = ExpertsConfig(8, 2, 32, is_normalized=True)
    attention, mlp = 4 * 16 * 16, 8 * 3 * 16 * 32
    cost = head_cost_in_layers(replace(config, experts=experts))
    assert cost == pytest.approx(0.5 * 97 * 16 / (attention + mlp))


def test_plan_heavy_head_gives_the_last_stage_fewer_layers(config: ModelConfig) -> None:
    plan = plan_replica(OPTIONS, replace(config, vocab_size=800), "f00", 0)
    assert [(part.first_layer, part.num_layers) for part in plan] == [(0, 3), (3, 1)]


def test_plan_uses_given_layers(config: ModelConfig) -> None:
    plan = plan_replica(replace(OPTIONS, layers=(1, 3)), config, "f00", 0)
    assert [(part.stage, part.first_layer, part.num_layers) for part in plan] == [
        (0, 0, 1),
        (1, 1, 3),
    ]
    assert {part.max_model_len for part in plan} == {512}


@pytest.mark.parametrize(
    ("tp", "expected"),
    [
        ((2,), [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2)]),
        ((1, 2), [(0, 0, 1), (1, 0, 2), (1, 1, 2)]),
    ],
)
def test_plan_has_a_part_for_each_rank_of_each_stage(
    config: ModelConfig, tp: tuple[int, ...], expected: list[tuple[int, int, int]]
) -> None:
    options = replace(OPTIONS, tp=tp)
    plan = plan_replica(options, config, "f00", 0)
    assert [(part.stage, part.rank, part.tp_size) for part in plan] == expected
    assert options.num_workers == len(plan)


def test_plan_with_more_ranks_than_key_value_heads_names_the_numbers(config: ModelConfig) -> None:
    with pytest.raises(TooManyRanksError, match="4 ranks a stage for 2 key/value heads"):
        plan_replica(replace(OPTIONS, tp=(4,)), config, "f00", 0)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (replace(OPTIONS, layers=(2, 3)), LayerSplitError),
        (replace(OPTIONS, layers=(4,)), LayerSplitError),
        (replace(OPTIONS, pp=5), TooManyStagesError),
        (replace(OPTIONS, max_model_len=513), InvalidRequestError),
        (replace(OPTIONS, max_model_len=1), InvalidRequestError),
        (replace(OPTIONS, tp=(3,)), TooManyRanksError),
        (replace(OPTIONS, tp=(1, 3)), TooManyRanksError),
        (replace(OPTIONS, tp=(2, 1, 2)), RankCountError),
    ],
)
def test_plan_impossible_options_are_refused(
    config: ModelConfig, options: CoordinatorOptions, error: type[Exception]
) -> None:
    with pytest.raises(error):
        plan_replica(options, config, "f00", 0)


@pytest.mark.parametrize(
    ("changes", "block_bytes"),
    [
        ({"dtype": "float32"}, 2 * 2 * 2 * 8 * 4 * 16),
        ({}, 2 * 2 * 2 * 8 * 2 * 16),
        ({"tp": (2,)}, 2 * 2 * 1 * 8 * 2 * 16),
        ({"layers": (1, 3), "block_size": 1}, 2 * 3 * 2 * 8 * 2),
    ],
)
def test_plan_with_memory_below_one_kv_block_is_refused(
    changes: dict[str, Any], block_bytes: int, config: ModelConfig
) -> None:
    options = replace(OPTIONS, kv_memory_bytes=block_bytes - 1, **changes)
    with pytest.raises(InvalidRequestError, match=rf"--kv-memory.* take {block_bytes:,}"):
        plan_replica(options, config, "f00", 0)
    plan_replica(replace(options, kv_memory_bytes=block_bytes), config, "f00", 0)


def test_plan_model_path_is_absolute(
    config: ModelConfig, toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy_folder.parent)
    (part, _) = plan_replica(replace(OPTIONS, model="toy"), config, "f00", 0)
    assert part.model == str(toy_folder)


@pytest.mark.parametrize(
    ("stored", "requested", "dtypes", "expected"),
    [
        ("bfloat16", "auto", (("float32", "bfloat16"), ("float32", "bfloat16")), "bfloat16"),
        ("bfloat16", "auto", (("float32", "bfloat16"), ("float32",)), "float32"),
        ("float32", "auto", (("float32", "bfloat16"), ()), "float32"),
        ("float32", "bfloat16", (("float32",), ("float32",)), "bfloat16"),
    ],
)
def test_resolve_dtype_is_one_that_all_workers_compute_fast(
    config: ModelConfig,
    stored: str,
    requested: str,
    dtypes: tuple[tuple[str, ...], ...],
    expected: str,
) -> None:
    config = replace(config, torch_dtype=stored)
    plan = plan_replica(replace(OPTIONS, dtype=requested), config, "f00", 0)
    workers = [WorkerRecord(replace(make_identity("a"), dtypes=fast)) for fast in dtypes]
    assert [part.dtype for part in resolve_dtype(plan, config, workers)] == [expected] * 2


def test_served_len_is_bounded_by_model_and_cache() -> None:
    assert served_len(512, False, 64, 16) == 512
    assert served_len(512, False, 8, 16) == 128
    assert served_len(128, True, 8, 16) == 128


def test_served_len_requested_above_the_cache_is_refused_with_numbers() -> None:
    with pytest.raises(NeverFitsError) as caught:
        served_len(512, True, 8, 16)
    assert (caught.value.num_blocks_needed, caught.value.num_blocks) == (32, 8)
