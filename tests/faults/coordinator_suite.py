"""kill -9, SIGTERM and SIGSTOP of the coordinator, at every phase.

If it dies after answers have begun, their clients get an error; where nothing had come yet, they
ask again by themselves, and get the tokens of an undisturbed run.

`make test-faults` runs it; its name keeps it out of other runs, because it takes minutes.
"""

import signal
import time

import psutil
import pytest

from stagemesh import StagemeshRpcError
from stagemesh.faults.fault_proxy import Faults
from tests.faults.asking import REQUESTS, Asked, asking, request_of
from tests.faults.cluster import Cluster, Place
from tests.faults.phases import LONG_PROMPT, PREFILL, hold_prefill

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FREEZE_SECONDS = 5.0
STAGES = (0, 1)
ENDLESS = request_of(max_tokens=3000)


def kill(cluster: Cluster) -> None:
    """kill -9; returns once nothing of it is left."""
    cluster.coordinator.process.kill()
    cluster.coordinator.wait()


def assert_serves_again(cluster: Cluster) -> None:
    """A client that asks before its workers are back is answered all the same."""
    # A client waits for a server that went away, not for one that never was there.
    cluster.wait_until(lambda _: True, "answering")
    with asking(cluster, *REQUESTS):
        cluster.ready_state()


def begun(cluster: Cluster) -> Asked:
    """An answer under way that does not end by itself in the time of a test."""
    asked = Asked(ENDLESS, cluster.target)
    asked.start()
    asked.wait_for_tokens(3)
    return asked


def assert_told(asked: Asked) -> None:
    """It ended soon, with an error that states the reason."""
    with pytest.raises(StagemeshRpcError, match="no mesh answers"):
        asked.result()


class TestKilled:
    """kill -9."""

    def test_coordinator_killed_in_decode_is_told_and_serves_again(self, cluster: Cluster) -> None:
        asked = begun(cluster)
        kill(cluster)
        assert_told(asked)
        cluster.start_coordinator()
        assert_serves_again(cluster)

    def test_coordinator_killed_in_prefill_is_asked_again(self, cluster: Cluster) -> None:
        bytes_per_second, num_bytes = PREFILL
        receiver = cluster.worker_at(Place(1))
        hold_prefill(cluster, bytes_per_second)
        with asking(cluster, LONG_PROMPT) as (asked,):
            receiver.frames.wait_for_bytes(num_bytes)
            assert not asked.tokens
            kill(cluster)
            cluster.start_coordinator()

    def test_coordinator_killed_while_workers_load_serves_again(self, cluster: Cluster) -> None:
        spare = cluster.spare()
        spare.calls.set(Faults(is_stalled=True))
        cluster.worker_at(Place(1)).kill()
        cluster.wait_until(lambda state: state.phase.startswith("loading"), "loading")
        kill(cluster)
        spare.heal()
        cluster.start_coordinator()
        assert_serves_again(cluster)

    @pytest.mark.parametrize("stage", STAGES)
    def test_coordinator_and_a_stage_killed_at_once_serve_again(
        self, stage: int, cluster: Cluster
    ) -> None:
        asked, victim = begun(cluster), cluster.worker_at(Place(stage))
        cluster.coordinator.signal(signal.SIGKILL)
        victim.kill()
        cluster.coordinator.wait()
        assert_told(asked)
        cluster.start_coordinator()
        assert_serves_again(cluster)

    def test_coordinator_killed_while_draining_tells_its_clients(self, cluster: Cluster) -> None:
        asked = begun(cluster)
        cluster.coordinator.signal(signal.SIGTERM)
        cluster.wait_until(lambda state: not state.ready, "draining")
        kill(cluster)
        assert_told(asked)
        cluster.start_coordinator()
        assert_serves_again(cluster)


class TestDraining:
    """SIGTERM: it takes no more requests, and lets those that run end."""

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_killed_while_the_coordinator_drains_costs_no_token(
        self, stage: int, cluster: Cluster
    ) -> None:
        # parallax, exo: a started stream is silently cut.
        victim = cluster.worker_at(Place(stage))
        with asking(cluster, *REQUESTS) as asked:
            for each in asked[:2]:
                each.wait_for_tokens(3)
            cluster.coordinator.signal(signal.SIGTERM)
            cluster.wait_until(lambda state: not state.ready, "draining")
            assert not any(each.is_over for each in asked)
            victim.kill()
        assert cluster.coordinator.wait() == 0
        cluster.start_coordinator()


class TestFrozen:
    """SIGSTOP: it is there and does nothing."""

    def test_coordinator_frozen_for_a_while_costs_no_token(self, cluster: Cluster) -> None:
        coordinator = psutil.Process(cluster.coordinator.process.pid)
        with asking(cluster, *REQUESTS) as asked:
            asked[0].wait_for_tokens(3)
            coordinator.suspend()
            time.sleep(FREEZE_SECONDS)  # is the fault
            coordinator.resume()

    def test_coordinator_frozen_for_ever_tells_its_clients(self, cluster: Cluster) -> None:
        # vllm#45414, #45388: nothing moves and nobody notices.
        asked = begun(cluster)
        psutil.Process(cluster.coordinator.process.pid).suspend()
        try:
            assert_told(asked)
        finally:
            kill(cluster)
        cluster.start_coordinator()
        assert_serves_again(cluster)
