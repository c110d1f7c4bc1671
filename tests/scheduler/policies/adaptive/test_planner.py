"""The number and length of a cycle's microbatches."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cost_model.stage_costs import StageCostModel
from scheduler.policies.adaptive.cycle_costs import CycleBasis
from scheduler.policies.adaptive.planner import MIN_CHUNK_TOKENS, CyclePlan, CyclePlanner, best_plan
from scheduler.policies.adaptive.targets import CycleLimits, CycleLoad

STAGE = StageCostModel(fixed=0.01, per_token=1e-4)
DECODES = CycleLoad(num_decodes=32, decode_context=32_000, num_prompt_tokens=0, prompt_context=0.0)
MIXED = replace(DECODES, num_prompt_tokens=20_000, prompt_context=500.0)
NO_LIMIT = CycleLimits(math.inf, 2048)


def make_planner(
    stages: list[StageCostModel], overhead: float, load: CycleLoad, limits: CycleLimits
) -> CyclePlanner:
    return CyclePlanner(CycleBasis(stages, overhead, load), limits)


def settle(
    stages: list[StageCostModel], overhead: float, load: CycleLoad, limits: CycleLimits = NO_LIMIT
) -> CyclePlan:
    """The fixed point of successive plans."""
    planner = make_planner(stages, overhead, load, limits)
    current = planner.plan(2, 2)
    for _ in range(30):
        plans = [
            planner.plan(number, with_prompts)
            for number in range(1, 17)
            for with_prompts in range(1, number + 1)
        ]
        current = best_plan(plans, current)
    return current


@pytest.mark.parametrize("num_stages", [1, 2, 4, 8])
def test_balanced_stages_with_decodes_get_nearly_a_microbatch_each(num_stages: int) -> None:
    plan = settle([STAGE] * num_stages, 0.0, DECODES)
    assert num_stages - 2 <= plan.num_in_flight <= num_stages


def test_stage_that_takes_twice_as_long_lowers_the_steps_in_flight() -> None:
    plan = settle([STAGE, STAGE.scaled(2.0), STAGE, STAGE], 0.0, DECODES)
    assert plan.num_in_flight in (2, 3)


def test_slow_link_with_prompts_raises_the_steps_in_flight() -> None:
    near, far = settle([STAGE] * 4, 0.0, MIXED), settle([STAGE] * 4, 0.2, MIXED)
    assert far.num_in_flight > near.num_in_flight


def test_slow_link_with_few_decodes_is_not_split() -> None:
    """Case 2 (vllm#55145): splitting into microbatches loses on slow links."""
    few = replace(DECODES, num_decodes=4, decode_context=400)
    assert settle([STAGE] * 2, 0.5, few).num_in_flight == 1


@given(
    seconds=st.floats(0.05, 1.0),
    number=st.integers(1, 8),
    overhead=st.floats(0.0, 0.02),
    factor=st.floats(0.5, 3.0),
)
def test_plan_that_fits_keeps_the_cycle_within_its_budget(
    seconds: float, number: int, overhead: float, factor: float
) -> None:
    stages = [STAGE, STAGE.scaled(factor), STAGE]
    plan = make_planner(stages, overhead, MIXED, CycleLimits(seconds, 2048)).plan(number, number)
    num_decodes = -(-MIXED.num_decodes // number)
    assert plan.target_tokens >= num_decodes + MIN_CHUNK_TOKENS
    assert plan.fits is (plan.cycle_seconds <= seconds * 1.03)
    if plan.target_tokens > num_decodes + MIN_CHUNK_TOKENS:
        assert plan.fits


def test_longer_backlog_makes_longer_chunks() -> None:
    few = replace(MIXED, num_prompt_tokens=300)
    short, long = (
        make_planner([STAGE] * 4, 0.0, load, NO_LIMIT).plan(4, 4) for load in (few, MIXED)
    )
    assert short.target_tokens < long.target_tokens


def test_prompt_cost_weight_ends_chunks_at_the_knee() -> None:
    """Each prompt token should lengthen its cycle least: chunks end at the knee."""
    stage = replace(STAGE, prompt=0.005, per_token=1e-6, beyond_512=1e-4)
    for seconds in (0.2, 0.4, math.inf):
        by_rate, by_cost = (
            make_planner(
                [stage] * 4,
                0.0,
                MIXED,
                CycleLimits(seconds, 2048, prompt_cost_weight=prompt_cost_weight),
            )
            for prompt_cost_weight in (0.0, 1.0)
        )
        assert by_rate.plan(4, 4).target_tokens > 600
        assert by_cost.plan(4, 4).target_tokens == 512


def test_prompt_cost_weight_with_linear_costs_keeps_chunks() -> None:
    """Smaller chunks would only add fixed costs."""
    for prompt_cost_weight in (0.0, 0.5, 1.0):
        limits = CycleLimits(0.3, 2048, prompt_cost_weight=prompt_cost_weight)
        plan = make_planner([replace(STAGE, prompt=0.005)] * 4, 0.0, MIXED, limits).plan(4, 4)
        assert plan.cycle_seconds == pytest.approx(0.3, rel=0.02)


def test_plans_that_miss_the_target_lead_to_those_that_fit() -> None:
    """Regression: eight chunks of 16 tokens with twice the target time lasted for a minute."""
    stages = [STAGE, STAGE.scaled(2.0), STAGE, STAGE]
    limits = CycleLimits(0.12, 2048)
    planner = make_planner(stages, 0.0, MIXED, limits)
    current = planner.plan(8, 8)
    assert not current.fits
    for number in range(8, 3, -1):
        nearby = range(number - 1, number + 2)
        plans = [planner.plan(n, k) for n in nearby for k in range(n, 0, -1)]
        current = best_plan(plans, current)
        if current.fits:
            break
        assert current.num_in_flight == number - 1
    assert current.fits
    assert settle(stages, 0.0, MIXED, limits).rate > 2 * planner.plan(8, 8).rate
