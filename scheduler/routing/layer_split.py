"""Splits a model's layers among the stages of a pipeline, by counts; it knows no workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from runtime.errors import LayerSplitError, TooManyStagesError


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The contiguous layers of one stage, counted from 0."""

    stage: int
    first_layer: int
    num_layers: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All stages of one replica, in order."""

    stages: tuple[StagePlan, ...]


def split_layers(
    num_layers: int, num_stages: int, head_cost_layers: float = 0.0, embed_cost_layers: float = 0.0
) -> tuple[int, ...]:
    """Layer counts per stage, each at least 1, that minimise the cost of the costliest stage.

    The first stage also costs `embed_cost_layers` and the last `head_cost_layers`, in units of one
    layer. Each layer goes to the cheapest stage, the earliest of equals; since all layers cost the
    same, no exchange can lower the maximum. Raises TooManyStagesError.
    """
    assert num_stages >= 1, f"{num_stages} stages"
    if num_stages > num_layers:
        raise TooManyStagesError(num_layers=num_layers, num_stages=num_stages)
    extra_costs = [0.0] * num_stages
    extra_costs[0] += embed_cost_layers
    extra_costs[-1] += head_cost_layers
    counts = [1] * num_stages
    for _ in range(num_layers - num_stages):
        cheapest = min(range(num_stages), key=lambda stage: counts[stage] + extra_costs[stage])
        counts[cheapest] += 1
    return tuple(counts)


def check_layers(layers: Sequence[int], num_layers: int, num_stages: int) -> None:
    """Raises LayerSplitError unless the counts, each at least 1, sum to the whole model."""
    fits = len(layers) == num_stages and min(layers, default=0) >= 1 and sum(layers) == num_layers
    if not fits:
        raise LayerSplitError(layers=tuple(layers), num_layers=num_layers, num_stages=num_stages)


def make_plan(layers: Sequence[int]) -> Plan:
    """The plan of these layer counts per stage."""
    first_layers = accumulate(layers[:-1], initial=0)
    return Plan(
        tuple(
            StagePlan(stage, first_layer, count)
            for stage, (first_layer, count) in enumerate(zip(first_layers, layers, strict=True))
        )
    )
