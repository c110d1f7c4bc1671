"""kill -9 and SIGSTOP of the workers of a pipeline of two stages, at every phase.

`make test-faults` runs it; its name keeps it out of other runs, because it takes minutes.
"""

import time

import pytest

from stagemesh.faults.fault_proxy import Faults
from tests.faults.asking import REQUESTS, asking, disturbed
from tests.faults.cluster import Cluster, Place
from tests.faults.phases import PHASES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FREEZE_SECONDS = 5.0
STAGES = (0, 1)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("phase", PHASES)
def test_stage_killed_costs_no_token(phase: str, stage: int, cluster: Cluster) -> None:
    PHASES[phase](cluster, Place(stage))


class TestSeveral:
    """More than one death."""

    def test_both_stages_killed_at_once_cost_no_token(self, cluster: Cluster) -> None:
        def disturb() -> None:
            for victim in [cluster.worker_at(Place(stage)) for stage in STAGES]:
                victim.kill()
            cluster.start_worker()

        disturbed(cluster, disturb)

    def test_stage_killed_while_another_is_replaced_costs_no_token(self, cluster: Cluster) -> None:
        victims = [cluster.worker_at(Place(stage)) for stage in STAGES]

        def disturb() -> None:
            victims[0].kill()
            cluster.wait_until(lambda state: not state.ready, "without its stage")
            victims[1].kill()
            cluster.start_worker()

        disturbed(cluster, disturb)

    def test_other_stage_killed_while_one_drains_costs_no_token(self, cluster: Cluster) -> None:
        spare = cluster.spare()
        leaver, victim = (cluster.worker_at(Place(stage)) for stage in STAGES)
        spare.calls.set(Faults(is_stalled=True))
        with asking(cluster, *REQUESTS[:2]) as asked:
            asked[0].wait_for_tokens(3)
            leaver.command.process.terminate()
            cluster.wait_for_log("worker_leaves", leaver.address)
            victim.kill()
            spare.heal()
            cluster.start_worker()
        assert leaver.command.wait() == 0

    def test_every_worker_killed_before_the_first_service_is_replaced(
        self, cluster: Cluster
    ) -> None:
        # The patience of a mesh that has not served yet is another one.
        cluster.coordinator.process.kill()
        cluster.coordinator.wait()
        for worker in cluster.workers:
            worker.kill()
        cluster.start_coordinator()
        first = cluster.start_worker()
        cluster.wait_until(lambda state: len(state.workers) == 1, "short of a worker")
        first.calls.set(Faults(is_stalled=True))
        second = cluster.start_worker()
        cluster.wait_until(lambda state: state.phase.startswith("loading"), "loading")
        with asking(cluster, *REQUESTS[:2]):
            for worker in (first, second):
                worker.kill()
            cluster.refill()


class TestFrozen:
    """SIGSTOP: a process that is there and does nothing."""

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_frozen_for_a_while_costs_no_token(self, stage: int, cluster: Cluster) -> None:
        victim = cluster.worker_at(Place(stage))

        def disturb() -> None:
            victim.freeze()
            time.sleep(FREEZE_SECONDS)  # is the fault
            victim.thaw()

        disturbed(cluster, disturb)

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_frozen_for_ever_is_replaced(self, stage: int, cluster: Cluster) -> None:
        # vllm#45414, #45388: nothing moves and nobody notices.
        victim = cluster.worker_at(Place(stage))
        try:
            disturbed(cluster, victim.freeze)
        finally:
            victim.kill()

    def test_spare_frozen_while_it_loads_is_replaced(self, cluster: Cluster) -> None:
        spare, victim = cluster.spare(), cluster.worker_at(Place(1))
        with asking(cluster, *REQUESTS[:2]) as asked:
            asked[0].wait_for_tokens(3)
            spare.freeze()
            victim.kill()
            cluster.start_worker()
        spare.kill()
