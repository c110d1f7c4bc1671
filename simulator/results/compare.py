"""Compares policies in scenarios: one replay, or a search for the goodput.

Goodput is the highest request rate at which 90 % of the requests meet both latency targets.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from scheduler import PolicyOptions, make_policy
from scheduler.policies import AdaptiveOptions, MultiplicativeOptions, PolicyName
from simulator.replay import Replay, ReplayOptions, RunResult
from simulator.results.measures import Summary, summarise
from simulator.workload.scenarios import Scenario
from simulator.workload.traces import Trace

GOOD_SHARE = 0.9
TOLERANCE = 0.06
"""Relative tolerance of a goodput; half of it is the expected error, less than between seeds."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy with its options; `num_in_flight` None is the number of steps of the limits."""

    policy: PolicyName
    options: PolicyOptions
    num_in_flight: int | None = None


def contender(policy: PolicyName, scenario: Scenario, max_step_tokens: int = 512) -> Contender:
    """Returns a policy with default options; `adaptive` sets the steps in flight itself."""
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
    """Replays a trace, which need not be the scenario's own."""
    max_in_flight = scenario.limits.num_steps_in_flight
    limits = replace(scenario.limits, num_steps_in_flight=contender.num_in_flight or max_in_flight)
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
    """Searches the goodput of a policy with `num_requests` requests of the scenario.

    A `guess` above 0 shortens the search.
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
    """Returns the share of `num_requests` requests at `rate` that meet both targets."""
    trace = scenario.make_trace(num_requests, rate, seed)
    result = replay(scenario, trace, contender, seed)
    return sum(map(scenario.targets.met, result.outcomes)) / num_requests


def search_goodput(
    is_good: Callable[[float], bool], start: float, stride: float = 2.0, tolerance: float = 0.04
) -> float:
    """Returns the highest good rate within a relative tolerance, between start/256 and 256*start.

    0 if no rate is good. Multiplies or divides `start` by `stride` until it has a good and a bad
    rate, then bisects; assumes that a rate below a good one is good.
    """
    good, bad = (start, None) if is_good(start) else (None, start)
    while bad is None:
        assert good is not None
        if good >= 256 * start:
            return good
        if is_good(stride * good):
            good *= stride
        else:
            bad = stride * good
    while good is None:
        if bad < start / 256:
            return 0.0
        if is_good(bad / stride):
            good = bad / stride
        else:
            bad /= stride
    while bad / good > 1 + tolerance:
        middle = (good * bad) ** 0.5
        if is_good(middle):
            good = middle
        else:
            bad = middle
    return good
