"""Compute times from the measured table."""

import pytest

from runtime.errors import InvalidRequestError
from scheduler import StepWork
from simulator.model.stage_times import Curve, guess_stages, load_times
from simulator.workload.scenarios import Scenario, make_scenarios

TIMES = load_times("llama2-70b/h100-80gb/4")


def test_curve_is_straight_between_its_points_and_beyond_them() -> None:
    curve = Curve({0.0: 1.0, 10.0: 3.0, 20.0: 4.0})
    assert [curve(x) for x in (0, 5, 10, 15, 30)] == [1.0, 2.0, 3.0, 3.5, 5.0]


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        (StepWork(num_tokens=1, num_decodes=1), 0.0296),
        (StepWork(num_tokens=64, num_decodes=64), 0.0524),
        (StepWork(num_tokens=512), 0.0596),
        (StepWork(num_tokens=4096), 0.4422),
    ],
)
def test_times_at_measured_points_are_the_measured_ones(work: StepWork, seconds: float) -> None:
    assert TIMES.seconds(work) == pytest.approx(seconds, rel=0.02)


def test_prompts_beside_decodes_cost_a_tenth_more() -> None:
    alone = TIMES.seconds(StepWork(num_tokens=1024))
    mixed = TIMES.seconds(StepWork(num_tokens=1024, num_decodes=4))
    assert mixed == pytest.approx(1.1 * alone)


def test_attention_of_one_long_prompt_costs_more_than_of_many_short_ones() -> None:
    short = TIMES.seconds(StepWork(num_tokens=8192, prefill_attention=16 * 512**2))
    long = TIMES.seconds(StepWork(num_tokens=8192, prefill_attention=8192**2))
    assert long == pytest.approx(0.9536, rel=0.01)
    assert short < long


def test_incomplete_measurement_is_left_out() -> None:
    times = load_times("llama2-70b/h100-80gb/2")
    assert times.seconds(StepWork(num_tokens=32_768)) > times.seconds(StepWork(num_tokens=16_384))


def test_unknown_hardware_names_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match="llama2-70b/h100-80gb/4"):
        load_times("llama2-70b/abacus/1")


@pytest.mark.parametrize("scenario", make_scenarios().values(), ids=lambda each: each.name)
def test_scenario_has_the_device_priors_of_its_stages(scenario: Scenario) -> None:
    """An accelerator reads its weights in the time of hundreds of rows, a CPU of some eight."""
    guesses = scenario.limits.guessed_costs
    assert len(guesses) == scenario.pipeline.num_stages
    assert all(guess.fixed > 100 * guess.last_token for guess in guesses)
    fixed = [guess.fixed for guess in guesses]
    assert max(fixed) / min(fixed) == pytest.approx(
        max(scenario.pipeline.shares) / min(scenario.pipeline.shares), rel=0.01
    )


@pytest.mark.parametrize("model", ["llama2-70b", "bloom-176b"])
def test_guess_of_stages_shares_the_weights_among_their_devices(model: str) -> None:
    (whole,), (half, _) = (
        guess_stages(f"{model}/h100-80gb/2", shares) for shares in ((1.0,), (0.5, 0.5))
    )
    (four,) = guess_stages(f"{model}/h100-80gb/4", (1.0,))
    assert half.fixed == pytest.approx(whole.fixed / 2, rel=0.01)
    assert four.last_token == pytest.approx(whole.last_token / 2, rel=0.01)
