"""Prior costs of stages by device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cost_model.feedback import StepWork
from scheduler.cost_model.roofline_priors import guess_costs


@given(
    kind=st.sampled_from(["cpu", "cuda", "paced"]),
    weights_bytes=st.integers(0, 10**12),
    bytes_per_weight=st.sampled_from([2, 4]),
    num_layers=st.integers(1, 100),
)
def test_prior_of_any_stage_is_positive_and_convex_in_rows(
    kind: str, weights_bytes: int, bytes_per_weight: int, num_layers: int
) -> None:
    costs = guess_costs(kind, weights_bytes, bytes_per_weight, num_layers)
    assert min(costs.coefficients) >= 0.0
    assert costs.seconds(StepWork(1, 1, 0, 0, 1, 1)) > 0.0


@pytest.mark.parametrize("weights_bytes", [0, 10**9, 35 * 10**9])
def test_prior_of_accelerators_has_its_knee_at_longer_chunks_than_cpus(
    weights_bytes: int,
) -> None:
    cpu = guess_costs("cpu", weights_bytes, 4, num_layers=0)
    gpu = guess_costs("cuda", weights_bytes, 2, num_layers=0)
    assert gpu.fixed / gpu.last_token > 20 * cpu.fixed / cpu.last_token


def test_prior_of_a_small_model_on_an_accelerator_is_launch_bound() -> None:
    deep, shallow = (guess_costs("cuda", 10**8, 2, num_layers) for num_layers in (40, 20))
    assert deep.fixed == pytest.approx(2 * shallow.fixed)
    assert deep.last_token == pytest.approx(shallow.last_token)
