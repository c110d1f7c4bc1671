"""One request at a time: what adaptive batching must not cost."""

import pytest

from scheduler import PolicyName, PolicyOptions, make_policy
from simulator.measures import Percentiles
from simulator.pipeline import PipelineSpec, layer_shares
from simulator.replay import Replay, ReplayOptions
from simulator.scenarios import DEFAULT_LIMITS
from simulator.stage_times import linear_times
from simulator.traces import TraceRequest

NUM_STAGES = 4
# As on CPUs: reading the weights is little beside computing a prompt's rows.
TIMES = linear_times(fixed=0.08, per_token=0.004, per_attention=2e-8, per_context=1e-6)


def times_of(policy: PolicyName, num_prompt_tokens: int) -> tuple[float, float]:
    """Medians of TTFT and TPOT of five requests that never meet."""
    trace = tuple(TraceRequest(100.0 * turn, num_prompt_tokens, 16) for turn in range(5))
    pipeline = PipelineSpec(TIMES, layer_shares((1,) * NUM_STAGES), noise=0.0)
    policy_made = make_policy(policy, PolicyOptions())
    result = Replay(trace, pipeline, DEFAULT_LIMITS, policy_made, ReplayOptions()).run()
    ttft = Percentiles.of([each.ttft_seconds or 0.0 for each in result.outcomes])
    tpot = Percentiles.of([each.tpot_seconds or 0.0 for each in result.outcomes])
    return ttft.p50, tpot.p50


@pytest.mark.parametrize("num_prompt_tokens", [1, 20, 100, 500, 2000])
def test_lone_request_under_adaptive_waits_no_longer_than_under_fixed(
    num_prompt_tokens: int,
) -> None:
    adaptive, fixed = (times_of(name, num_prompt_tokens) for name in ("adaptive", "fixed"))
    assert adaptive[0] <= 1.02 * fixed[0]
    assert adaptive[1] <= 1.02 * fixed[1]
