"""The heart of the fault tests: what breaks most often, with the tokens of an undisturbed run.

`make test-faults` runs the rest (`*_suite.py`).
"""

import signal

import pytest

from stagemesh.faults.fault_proxy import Faults, OneShotFault
from tests.faults.asking import REQUESTS, asking, disturbed
from tests.faults.cluster import Cluster, Place
from tests.faults.phases import in_decode, in_prefill

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("stage", [0, 1])
def test_stage_killed_in_decode_costs_no_token(stage: int, cluster: Cluster) -> None:
    in_decode(cluster, Place(stage))


def test_stage_killed_in_the_middle_of_a_prefill_costs_no_token(cluster: Cluster) -> None:
    in_prefill(cluster, Place(1))


@pytest.mark.parametrize("accident", [OneShotFault.DROP, OneShotFault.TRUNCATE])
def test_link_that_breaks_in_the_middle_costs_no_token(
    accident: OneShotFault, cluster: Cluster
) -> None:
    # exo#1296, parallax: a broken stream cut answers without a word.
    frames = cluster.worker_at(Place(1)).frames
    faults = Faults(one_shots=((1 << 12, accident),))
    disturbed(cluster, lambda: frames.set(faults))


def test_coordinator_killed_and_started_again_serves_with_the_same_workers(
    cluster: Cluster,
) -> None:
    pids = {worker.pid for worker in cluster.workers}
    cluster.coordinator.signal(signal.SIGKILL)
    cluster.coordinator.wait()
    cluster.start_coordinator()
    state = cluster.wait_until(lambda state: state.ready, "serving again")
    assert {worker.pid for worker in state.workers} <= pids
    with asking(cluster, *REQUESTS[:2]):
        pass
