"""Runs policies through scenarios on equal terms: one replay, or a search for the goodput."""

from dataclasses import dataclass, replace

from scheduler import PolicyOptions, make_policy
from scheduler.policies import AdaptiveOptions, MultiplicativeOptions, PolicyName
from simulator.replay import Replay, ReplayOptions, RunResult
from simulator.results.goodput import GOOD_SHARE, search_goodput
from simulator.results.measures import Summary, summarise
from simulator.workload.scenarios import Scenario
from simulator.workload.traces import Trace

TOLERANCE = 0.06
"""Of a goodput: half of it is the error to expect, less than what seeds make."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy as it is tuned; without `num_in_flight` it may have as many steps as the limits."""

    policy: PolicyName
    options: PolicyOptions
    num_in_flight: int | None = None


def contender(policy: PolicyName, scenario: Scenario, max_step_tokens: int = 512) -> Contender:
    """A policy as it comes: one step in flight per stage, but for the one that chooses itself."""
    targets = scenario.targets
    options = PolicyOptions(
        max_step_tokens=max_step_tokens,
        multiplicative=MultiplicativeOptions(max_size=scenario.limits.max_step_tokens),
        adaptive=AdaptiveOptions(tpot_seconds=targets.tpot_seconds),
    )
    num_in_flight = None if policy == "adaptive" else scenario.pipeline.num_stages
    return Contender(policy, options, num_in_flight)


def replay(
    scenario: Scenario,
    trace: Trace,
    contender: Contender,
    seed: int,
    max_misses: int | None = None,
) -> RunResult:
    """One replay of a trace, which need not be the scenario's own."""
    most = scenario.limits.num_steps_in_flight
    limits = replace(scenario.limits, num_steps_in_flight=contender.num_in_flight or most)
    return Replay(
        trace,
        scenario.pipeline_for(trace),
        limits,
        make_policy(contender.policy, contender.options),
        ReplayOptions(targets=scenario.targets, seed=seed, max_misses=max_misses),
    ).run()


def summary_of(scenario: Scenario, result: RunResult, contender: Contender) -> Summary:
    """A replay's figures."""
    num_in_flight = contender.num_in_flight or scenario.limits.num_steps_in_flight
    return summarise(result, scenario.pipeline, scenario.targets, num_in_flight)


def goodput(
    scenario: Scenario, contender: Contender, num_requests: int, seed: int, guess: float = 0.0
) -> float:
    """The highest rate at which 90% of so many requests of the scenario meet both targets.

    A `guess` shortens the search.
    """
    max_misses = int(num_requests * (1.0 - GOOD_SHARE))

    def is_good(rate: float) -> bool:
        trace = scenario.make_trace(num_requests, rate, seed)
        return replay(scenario, trace, contender, seed, max_misses).is_complete

    if guess > 0.0:
        return search_goodput(is_good, guess, stride=1.12, tolerance=TOLERANCE)
    return search_goodput(is_good, scenario.usual_rate, stride=1.4, tolerance=TOLERANCE)


def good_share(
    scenario: Scenario, contender: Contender, num_requests: int, seed: int, rate: float
) -> float:
    """The share of so many requests at that rate that meet both targets."""
    trace = scenario.make_trace(num_requests, rate, seed)
    result = replay(scenario, trace, contender, seed)
    return sum(map(scenario.targets.met, result.outcomes)) / num_requests
