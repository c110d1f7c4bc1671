"""The split of layers among stages."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import LayerSplitError, TooManyStagesError
from scheduler.routing.layer_split import Plan, StagePlan, check_layers, make_plan, split_layers


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "expected"),
    [(30, 1, (30,)), (30, 2, (15, 15)), (30, 4, (8, 8, 7, 7)), (4, 4, (1, 1, 1, 1))],
)
def test_split_layers_without_extra_cost_is_even(
    num_layers: int, num_stages: int, expected: tuple[int, ...]
) -> None:
    assert split_layers(num_layers, num_stages) == expected


def test_split_layers_with_a_heavy_head_gives_the_last_stage_fewer() -> None:
    assert split_layers(30, 2, head_cost_layers=8.0) == (19, 11)
    assert split_layers(8, 4, head_cost_layers=20.0) == (3, 2, 2, 1)


def test_split_layers_with_a_heavy_embedding_gives_the_first_stage_fewer() -> None:
    assert split_layers(12, 3, embed_cost_layers=3.0) == (2, 5, 5)


def test_split_layers_more_stages_than_layers_is_refused_with_the_numbers() -> None:
    with pytest.raises(TooManyStagesError, match="5 stages for 4 layers"):
        split_layers(4, 5)


@given(
    num_layers=st.integers(1, 9),
    num_stages=st.integers(1, 4),
    head_cost=st.floats(0, 6),
    embed_cost=st.floats(0, 6),
)
def test_split_layers_any_costs_has_the_smallest_maximum(
    num_layers: int, num_stages: int, head_cost: float, embed_cost: float
) -> None:
    num_stages = min(num_stages, num_layers)

    def worst(counts: tuple[int, ...]) -> float:
        costs = [float(count) for count in counts]
        costs[0] += embed_cost
        costs[-1] += head_cost
        return max(costs)

    split = split_layers(num_layers, num_stages, head_cost, embed_cost)
    assert sum(split) == num_layers
    every_split = (
        counts
        for counts in product(range(1, num_layers + 1), repeat=num_stages)
        if sum(counts) == num_layers
    )
    assert worst(split) == min(worst(counts) for counts in every_split)


@pytest.mark.parametrize("layers", [(), (10, 10), (20, 10, 0), (31, -1), (30,), (10, 10, 10)])
def test_check_layers_that_do_not_fit_are_refused_with_the_numbers(layers: tuple[int, ...]) -> None:
    with pytest.raises(LayerSplitError, match=r"give 2 counts, .* the model's 30") as error:
        check_layers(layers, num_layers=30, num_stages=2)
    assert error.value.layers == layers


def test_make_plan_uneven_layers_are_contiguous() -> None:
    check_layers((3, 20, 7), num_layers=30, num_stages=3)
    assert make_plan((3, 20, 7)) == Plan(
        (StagePlan(0, 0, 3), StagePlan(1, 3, 20), StagePlan(2, 23, 7))
    )
