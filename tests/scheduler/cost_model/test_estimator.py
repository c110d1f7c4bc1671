"""Estimation of a stage's costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cost_model.estimator import CostEstimator
from scheduler.cost_model.feedback import StepWork
from scheduler.cost_model.roofline_priors import CPU_CORES, roofline
from scheduler.cost_model.stage_costs import StageCostModel, sum_costs

PRIOR = roofline(2e9, CPU_CORES, 4.0)
TRUTH = StageCostModel(
    fixed=0.007,
    prompt=0.002,
    per_token=1e-5,
    beyond_512=1.2e-5,
    per_attention=3e-10,
    per_context=2e-8,
    per_sample=3e-5,
)

costs = st.builds(
    StageCostModel,
    *[st.floats(0.0, 1e-2)] * 2,
    *[st.floats(0.0, 1e-3)] * 3,
    *[st.floats(0.0, 1e-6)] * 3,
)
works = st.builds(
    StepWork,
    num_tokens=st.integers(1, 1000),
    num_decodes=st.integers(0, 1),
    prefill_attention=st.integers(0, 10**6),
    decode_context=st.integers(0, 10**6),
    num_sequences=st.just(1),
    num_sampled=st.integers(0, 1),
)


def decodes(number: int, context: int = 1000) -> StepWork:
    return StepWork(number, number, 0, number * context, number, number)


def chunk(num_tokens: int, num_decodes: int = 0, position: int = 0) -> StepWork:
    attention = num_tokens * (2 * position + num_tokens)
    context = 1000 * num_decodes
    return StepWork(
        num_tokens + num_decodes, num_decodes, attention, context, num_decodes + 1, num_decodes
    )


def feed(
    estimator: CostEstimator, truth: StageCostModel, num_steps: int, factor: float = 1.0
) -> None:
    for step in range(num_steps):
        work = chunk(16 * (step % 61 + 2), step % 32, 64 * (step % 29))
        if step % 3 == 0:
            work = decodes(step % 40 + 1, 50 * (step % 37))
        wobble = 1.0 + 0.04 * ((step * 7919 % 11) / 5 - 1)
        estimator.observe(work, factor * wobble * truth.seconds(work))
        estimator.solve()


def test_estimator_after_mixed_steps_predicts_sizes_that_it_has_seen() -> None:
    estimator = CostEstimator(PRIOR)
    feed(estimator, TRUTH, 300)
    for work in (decodes(8), decodes(40), chunk(100, 20), chunk(400, 10, 500), chunk(900)):
        assert estimator.costs.seconds(work) == pytest.approx(TRUTH.seconds(work), rel=0.1)
    assert estimator.error < 0.1
    assert 1.0 <= estimator.safety < 1.15


def test_estimator_after_its_first_step_has_the_right_scale() -> None:
    estimator = CostEstimator(PRIOR)
    estimator.observe(decodes(4), 0.5)
    assert estimator.costs.seconds(decodes(4)) == pytest.approx(0.5, rel=0.01)


def test_estimator_after_many_decodes_still_predicts_prompts() -> None:
    estimator = CostEstimator(PRIOR)
    feed(estimator, TRUTH, 300)
    for step in range(2000):
        work = decodes(step % 16 + 1)
        estimator.observe(work, TRUTH.seconds(work))
    costs = estimator.solve()
    assert costs.seconds(chunk(600)) == pytest.approx(TRUTH.seconds(chunk(600)), rel=0.15)


def test_estimator_when_the_device_is_throttled_follows_within_some_steps() -> None:
    estimator = CostEstimator(PRIOR)
    feed(estimator, TRUTH, 200)
    feed(estimator, TRUTH, 6, factor=2.0)
    assert estimator.num_resets == 1
    for work in (decodes(8), chunk(400, 10, 500)):
        assert estimator.costs.seconds(work) == pytest.approx(2 * TRUTH.seconds(work), rel=0.15)


def test_estimator_with_outliers_is_hardly_moved() -> None:
    estimator = CostEstimator(PRIOR)
    feed(estimator, TRUTH, 200)
    before = estimator.solve().seconds(decodes(16))
    estimator.observe(decodes(16), 10 * TRUTH.seconds(decodes(16)))
    assert estimator.solve().seconds(decodes(16)) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_estimator_with_a_time_that_is_not_positive_learns_nothing(seconds: float) -> None:
    estimator = CostEstimator(PRIOR)
    estimator.observe(decodes(1), seconds)
    assert estimator.num_records == 0


@given(
    steps=st.lists(st.tuples(works, st.floats(1e-6, 1e3)), min_size=1, max_size=40),
)
def test_coefficients_whatever_is_measured_are_finite_and_not_negative(
    steps: list[tuple[StepWork, float]],
) -> None:
    estimator = CostEstimator(PRIOR)
    for work, seconds in steps:
        estimator.observe(work, seconds)
        solved = estimator.solve()
        assert all(0.0 <= getattr(solved, name) < 1e12 for name in solved.__slots__)


@given(costs=costs, work=works, context=st.integers(0, 5000), room=st.floats(0.0, 1.0))
def test_chunk_tokens_fill_the_room_and_no_more(
    costs: StageCostModel, work: StepWork, context: int, room: float
) -> None:
    num_tokens = costs.chunk_tokens(room, work, context)
    if num_tokens > 1e6:
        return
    prompt = costs.prompt if not work.has_prompts and num_tokens else 0.0

    def added(more: float) -> float:
        bends = zip((128, 512), (costs.beyond_128, costs.beyond_512), strict=True)
        rows = work.num_tokens
        return (
            prompt
            + costs.per_token * more
            + sum(
                bend * (max(0.0, rows + more - knot) - max(0, rows - knot)) for knot, bend in bends
            )
            + costs.per_attention * more * (2 * context + more)
        )

    assert added(num_tokens) <= room * (1 + 1e-6) + 1e-12
    assert added(num_tokens + 1) >= room * (1 - 1e-6) or room <= costs.prompt


def test_sum_costs_adds_stages() -> None:
    work = chunk(700, 3)
    both = sum_costs([TRUTH, PRIOR])
    assert both.seconds(work) == pytest.approx(TRUTH.seconds(work) + PRIOR.seconds(work))
