"""One request at a time: adaptive batching must not add latency."""

from dataclasses import replace

import pytest

from scheduler import PolicyName, PolicyOptions, guess_costs, make_policy
from scheduler.policies import AdaptiveOptions
from simulator.model.pipeline import PipelineSpec, layer_shares
from simulator.model.stage_times import linear_times, load_times
from simulator.replay import Replay, ReplayOptions, RunResult
from simulator.results.measures import Percentiles
from simulator.workload.scenarios import DEFAULT_LIMITS
from simulator.workload.traces import Trace, TraceRequest

NUM_STAGES = 4
# As on CPUs: reading the weights is little beside computing a prompt's rows.
CPU_TIMES = linear_times(fixed=0.08, per_token=0.004, per_attention=2e-8, per_context=1e-6)
H100_TIMES = load_times("llama2-70b/h100-80gb/4")
KINDS = {"cpu": (CPU_TIMES, 4), "cuda": (H100_TIMES, 2)}


def times_of(
    policy: PolicyName,
    num_prompt_tokens: int,
    kind: str = "cpu",
    tpot_seconds: float | None = None,
    num_requests: int = 5,
) -> tuple[float, float]:
    """Medians of TTFT and TPOT of some requests that never meet, on devices of a kind."""
    trace = tuple(TraceRequest(100.0 * turn, num_prompt_tokens, 16) for turn in range(num_requests))
    result = run(trace, policy, kind, tpot_seconds)
    ttft = Percentiles.of([each.ttft_seconds or 0.0 for each in result.outcomes])
    tpot = Percentiles.of([each.tpot_seconds or 0.0 for each in result.outcomes])
    return ttft.p50, tpot.p50


def run(trace: Trace, policy: PolicyName, kind: str, tpot_seconds: float | None) -> RunResult:
    """A replay on devices of a kind."""
    times, bytes_per_weight = KINDS[kind]
    pipeline = PipelineSpec(times, layer_shares((20,) * NUM_STAGES), noise=0.0)
    guess = guess_costs(kind, 9 * 10**9, bytes_per_weight, num_layers=20)
    limits = replace(DEFAULT_LIMITS, guessed_costs=(guess,) * NUM_STAGES)
    options = PolicyOptions(adaptive=AdaptiveOptions(tpot_seconds=tpot_seconds))
    return Replay(trace, pipeline, limits, make_policy(policy, options), ReplayOptions()).run()


@pytest.mark.parametrize("num_prompt_tokens", [1, 20, 100, 500, 2000])
def test_single_request_under_adaptive_has_at_most_the_ttft_of_fixed(
    num_prompt_tokens: int,
) -> None:
    adaptive, fixed = (times_of(name, num_prompt_tokens) for name in ("adaptive", "fixed"))
    assert adaptive[0] <= 1.02 * fixed[0]
    assert adaptive[1] <= 1.02 * fixed[1]


def test_single_prompt_with_an_unreachable_tpot_target_has_the_ttft_of_none() -> None:
    """Nothing decodes that shorter chunks would bring its tokens sooner."""
    assert times_of("adaptive", 500, tpot_seconds=0.001)[0] <= times_of("adaptive", 500)[0]


def test_prompts_beside_decodes_with_an_unreachable_tpot_target_have_the_ttft_of_none() -> None:
    """They were cut into chunks of 16 tokens, which helped nobody."""
    trace = (*(TraceRequest(0.0, 20, 400) for _ in range(8)), TraceRequest(20.0, 2000, 4))
    hurried, free = (
        run(trace, "adaptive", "cpu", tpot).outcomes[-1].ttft_seconds for tpot in (0.001, None)
    )
    assert free is not None
    assert hurried == free


@pytest.mark.parametrize("num_prompt_tokens", [20, 100, 500, 1000])
def test_single_prompt_on_accelerators_has_at_most_the_ttft_of_fixed(
    num_prompt_tokens: int,
) -> None:
    """A CPU's shape of costs would have cut 500 tokens into chunks that take as long as all."""
    adaptive, fixed = (times_of(name, num_prompt_tokens, "cuda") for name in ("adaptive", "fixed"))
    assert adaptive[0] <= 1.02 * fixed[0]


@pytest.mark.parametrize("num_prompt_tokens", [100, 500, 2000, 8000])
def test_first_prompt_of_an_epoch_on_accelerators_has_the_ttft_of_fixed(
    num_prompt_tokens: int,
) -> None:
    adaptive, fixed = (
        times_of(name, num_prompt_tokens, "cuda", num_requests=1) for name in ("adaptive", "fixed")
    )
    assert adaptive[0] <= 1.15 * fixed[0]
