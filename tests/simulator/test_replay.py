"""Whole replays: every request completes, and no figure exceeds its limit."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import POLICY_NAMES, StepWork, guess_costs
from scheduler.policies import PolicyName
from simulator.model.pipeline import LinkSpec
from simulator.results.compare import contender, goodput, replay, search_goodput, summary_of
from simulator.workload.scenarios import Scenario, make_scenarios
from simulator.workload.traces import Lengths, LoadShape, TraceRequest, synthetic

SCENARIOS = make_scenarios()
STEADY = SCENARIOS["steady"]
SHORT = LoadShape(Lengths(200, 0.8, 2000), Lengths(20, 0.6, 60))


def check_ratios(scenario: Scenario, name: PolicyName, trace: tuple[TraceRequest, ...]) -> None:
    its = contender(name, scenario)
    result = replay(scenario, trace, its, seed=1)
    ratios = summary_of(scenario, result, its).ratios
    for ratio in (ratios.throughput, ratios.occupancy, ratios.tpot, ratios.ttft):
        assert 0.0 < ratio <= 1.0 + 1e-9, ratios
    latest = result.policy_snapshot.ratios  # as they are reported live, of the latest steps only
    for ratio in (latest.throughput, latest.occupancy, latest.tpot, latest.ttft):
        assert math.isnan(ratio) or 0.0 < ratio <= 1.0 + 1e-9, latest


@pytest.mark.parametrize("name", POLICY_NAMES)
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rate=st.floats(2.0, 60.0),
    latency=st.sampled_from([0.0, 0.001, 0.02]),
    noise=st.sampled_from([0.0, 0.05]),
    scenario=st.sampled_from(["steady", "slow-stage", "heavy-head", "small-cache"]),
)
def test_replay_of_any_load_completes_all_requests_and_exceeds_no_limit(
    name: PolicyName, seed: int, rate: float, latency: float, noise: float, scenario: str
) -> None:
    base = SCENARIOS[scenario]
    pipeline = replace(base.pipeline, link=LinkSpec(latency), noise=noise)
    setting = replace(base, pipeline=pipeline)
    trace = synthetic(SHORT, 25, rate, seed)
    its = contender(name, setting)
    result = replay(setting, trace, its, seed)
    assert [each.num_tokens for each in result.outcomes] == [
        request.num_output_tokens for request in trace
    ]
    check_ratios(setting, name, trace)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", ["adaptive", "vllm"])
def test_replay_of_every_scenario_exceeds_no_limit(name: PolicyName, scenario: str) -> None:
    setting = SCENARIOS[scenario]
    check_ratios(setting, name, setting.make_trace(40, 6.0, 3))


def test_replay_of_equal_prefixes_hits_the_prefix_cache() -> None:
    """Of 1,024 tokens and a rest, the second finds what it shares and the third one part of it."""
    prompts = ((1, 2), (1, 2), (1, 3))
    trace = tuple(
        TraceRequest(10.0 * turn, 1030, 4, prefix_hashes=hashes)
        for turn, hashes in enumerate(prompts)
    )
    its = contender("fixed", STEADY)
    result = replay(STEADY, trace, its, seed=0)
    assert [each.num_cached_tokens for each in result.outcomes] == [0, 1024, 512]
    assert summary_of(STEADY, result, its).prefix_hit_share == 1536 / 3090
    first, second, third = (each.ttft_seconds or 0.0 for each in result.outcomes)
    assert second < third < first
    check_ratios(STEADY, "fixed", trace)


def test_recorded_trace_that_is_too_short_repeats_with_other_prompts() -> None:
    trace = SCENARIOS["mooncake"].make_trace(900, 1.0, 0)
    assert len(trace) == 900
    assert {*trace[0].prefix_hashes}.isdisjoint(trace[400].prefix_hashes)
    assert [each.arrival for each in trace] == sorted(each.arrival for each in trace)


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_single_prompts_on_an_idle_pipeline_exceed_no_limit(name: PolicyName) -> None:
    trace = tuple(TraceRequest(10.0 * turn, 300 * (turn + 1), 8) for turn in range(6))
    quiet = replace(STEADY, pipeline=replace(STEADY.pipeline, noise=0.0))
    check_ratios(quiet, name, trace)


def test_replay_with_equal_seeds_is_equal() -> None:
    trace = synthetic(SHORT, 30, 20.0, 5)
    its = contender("adaptive", STEADY)
    first, second = (replay(STEADY, trace, its, seed=3) for _ in range(2))
    assert first.outcomes == second.outcomes


def test_replay_that_may_miss_few_ends_early() -> None:
    trace = synthetic(SHORT, 200, 1000.0, 5)
    strict = replace(STEADY, targets=replace(STEADY.targets, ttft_seconds=0.01))
    result = replay(strict, trace, contender("fixed", strict), seed=0, max_misses=20)
    assert not result.is_complete
    assert len(result.spans) < 60


def test_adaptive_after_a_stage_slows_down_relearns_its_cost_within_20_cycles() -> None:
    trace = synthetic(SHORT, 300, 12.0, 5)
    slow = SCENARIOS["slow-stage"]
    result = replay(slow, trace, contender("adaptive", slow), seed=0)
    changed_at = trace[150].arrival
    costs = [stage.costs for stage in result.policy_snapshot.stages]
    decodes = StepWork(4, 4, 0, 1000, 4, 4)
    assert costs[1].seconds(decodes) > 1.7 * costs[0].seconds(decodes)
    assert result.policy_snapshot.stages[1].num_resets >= 1
    after = [span for span in result.spans if span.sent_at > changed_at + 0.5]
    seconds = [span.step_trace.done_at - span.sent_at for span in after if span.work.num_decodes]
    late = [value for value in seconds if value > 1.3 * slow.targets.tpot_seconds]
    assert len(late) < 0.02 * len(seconds)


def test_adaptive_with_few_decodes_over_a_slow_link_does_not_split() -> None:
    """Case 2 (vllm#55145): splitting into microbatches loses on slow links."""
    link = LinkSpec(latency_seconds=0.4)
    limits = replace(STEADY.limits, guessed_costs=(guess_costs("cuda", 0, 2, 0),) * 2)
    pipeline = replace(STEADY.pipeline, link=link, shares=(0.5, 0.5))
    far = replace(STEADY, pipeline=pipeline, limits=limits)
    trace = tuple(TraceRequest(0.0, 20, 80) for _ in range(4))
    its, other = contender("adaptive", far), contender("fixed", far)
    result, fixed = replay(far, trace, its, seed=0), replay(far, trace, other, seed=0)
    assert result.policy_snapshot.num_steps_in_flight == 1
    split, whole = summary_of(far, fixed, other), summary_of(far, result, its)
    assert whole.tpot.p50 <= 1.02 * split.tpot.p50
    assert whole.num_steps < 0.75 * split.num_steps


def test_decodes_of_32_over_four_stages_never_pile_up() -> None:
    """Case 1 (vllm#41682, #15330, #57433): all decodes in one batch, the other slots run empty."""
    four = replace(STEADY, limits=replace(STEADY.limits, num_steps_in_flight=4))
    trace = tuple(TraceRequest(0.0, 64, 200) for _ in range(32))
    result = replay(four, trace, contender("adaptive", four), seed=0)
    steady = [span for span in result.spans if not span.work.has_prompts][100:-100]
    assert max(span.work.num_decodes for span in steady) <= 9


@pytest.mark.parametrize("capacity", [0.3, 7.0, 200.0])
def test_search_finds_the_highest_good_rate(capacity: float) -> None:
    found = search_goodput(lambda rate: rate <= capacity, start=8.0)
    assert capacity / 1.05 <= found <= capacity


def test_search_where_no_rate_is_good_finds_none() -> None:
    assert search_goodput(lambda rate: False, start=8.0) == 0.0


def test_search_where_every_rate_is_good_ends() -> None:
    assert search_goodput(lambda rate: True, start=1.0) == 256.0


def test_goodput_is_a_rate_that_meets_both_targets() -> None:
    strict = replace(STEADY, targets=replace(STEADY.targets, ttft_seconds=0.3, tpot_seconds=0.06))
    strict = replace(
        strict, make_trace=lambda count, rate, seed: synthetic(SHORT, count, rate, seed)
    )
    its = contender("fixed", strict)
    found = goodput(strict, its, 60, seed=0)
    trace = synthetic(SHORT, 60, found, 0)
    assert summary_of(strict, replay(strict, trace, its, 0), its).good_share >= 0.9
