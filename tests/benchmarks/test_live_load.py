"""What is made of the outcomes of a trace."""

import pytest

from benchmarks.live_load import simulated, summed_up
from simulator.model.pacing import PacedModel
from simulator.model.stage_times import linear_times
from simulator.workload.outcomes import RequestOutcome
from simulator.workload.traces import TraceRequest

TIMES = linear_times(fixed=0.04, per_token=1e-4, per_attention=0.0, per_context=0.0)


def test_summary_counts_finished_requests_only() -> None:
    request = TraceRequest(1.0, 10, 5)
    finished = RequestOutcome(request, first_token_at=1.5, finished_at=3.5, num_tokens=5)
    failed = RequestOutcome(request, None, None, 0)
    figures = summed_up([finished, failed, finished], bubble=0.5)
    assert figures.token_rate == pytest.approx(10 / 3.5)
    assert figures.ttft.p50 == pytest.approx(0.5)
    assert figures.tpot.p50 == pytest.approx(0.5)
    assert figures.bubble == 0.5


def test_simulated_single_request_needs_a_round_trip_per_token() -> None:
    pace = PacedModel(times=TIMES, num_kv_blocks=64, noise=0.0, changes=())
    figures = simulated(pace, (8, 8, 7, 7), "adaptive", (TraceRequest(0.0, 10, 20),))
    # All stages take 40 ms, links and coordinator a millisecond each at most.
    assert 0.040 < figures.tpot.p50 < 0.048
    assert 0.7 < figures.bubble < 0.85
