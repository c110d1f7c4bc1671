"""Clients that come and go at the APIs of real processes; `benchmarks.churn` does it at length."""

import asyncio
from collections.abc import Callable

import pytest

from benchmarks.churn import MeshAddresses, churn, quantile
from tests.integration.processes import Mesh

pytestmark = pytest.mark.integration

NUM_STREAMS = 48
SECONDS = 3.0
# Far above what is measured in quiet: a busy machine must not fail the test, a blocked loop must.
LAG_SECONDS = 0.25


def test_clients_that_leave_at_random_leave_nothing_and_do_not_block_the_loop(
    pair: Mesh, record_property: Callable[[str, object], None]
) -> None:
    addresses = MeshAddresses(pair.target, pair.http)
    result = asyncio.run(churn(addresses, NUM_STREAMS, SECONDS, seed=4))
    assert result.errors == []
    assert min(result.num_finished, result.num_left) > NUM_STREAMS // 8
    lag_seconds = quantile(result.lag, 0.99)
    record_property("event_loop_lag_p99_seconds", lag_seconds)
    assert lag_seconds < LAG_SECONDS
