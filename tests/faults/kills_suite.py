"""kill -9 and SIGSTOP at every phase; decode and prefill of stages are in `test_faults.py`.

`make test-faults` runs it; its name keeps it out of other runs, because it takes minutes.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from stagemesh import StagemeshRpcError
from stagemesh.fault_proxy import Faults
from tests.faults.asking import REQUESTS, Asked, asking, disturbed, request_of
from tests.faults.cluster import Cluster, cluster_of, kept_whole
from tests.integration.tiny_chat import TinyChat

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FREEZE_SECONDS = 5.0
STAGES = RANKS = (0, 1)


class TestKills:
    """kill -9 of stages and of the coordinator."""

    def test_spare_killed_while_it_loads_is_replaced(self, cluster: Cluster) -> None:
        spare, victim = cluster.spare(), cluster.worker_of(1)
        with asking(cluster, *REQUESTS[:2]) as asked:
            asked[0].wait_for_tokens(3)
            spare.inward.set(Faults(is_stalled=True))
            victim.kill()
            cluster.wait_until(lambda state: state.phase.startswith("loading"), "loading")
            spare.kill()
            cluster.start_worker()

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_killed_in_the_middle_of_a_send_costs_no_token(
        self, stage: int, cluster: Cluster
    ) -> None:
        victim, receiver = cluster.worker_of(stage), cluster.worker_of(1)
        with asking(cluster, REQUESTS[2]) as (asked,):
            receiver.inward.set(Faults(bytes_per_second=40_000))
            receiver.inward.wait_for_bytes(20_000)
            assert not asked.tokens
            victim.kill()

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_killed_while_idle_is_replaced_before_the_next_request(
        self, stage: int, cluster: Cluster
    ) -> None:
        epoch = cluster.wait_until(lambda state: state.ready, "ready").replicas[0].epoch
        cluster.worker_of(stage).kill()
        cluster.wait_until(
            lambda state: state.ready and state.replicas[0].epoch != epoch, "in another epoch"
        )
        with asking(cluster, *REQUESTS[:2]):
            pass

    def test_both_stages_killed_at_once_cost_no_token(self, cluster: Cluster) -> None:
        def disturb() -> None:
            for victim in [cluster.worker_of(stage) for stage in STAGES]:
                victim.kill()
            cluster.start_worker()

        disturbed(cluster, disturb)

    def test_stage_killed_while_another_is_replaced_costs_no_token(self, cluster: Cluster) -> None:
        victims = [cluster.worker_of(stage) for stage in STAGES]

        def disturb() -> None:
            victims[0].kill()
            cluster.wait_until(lambda state: not state.ready, "without its stage")
            victims[1].kill()
            cluster.start_worker()

        disturbed(cluster, disturb)

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_killed_while_draining_ends_the_answer_with_a_word(
        self, stage: int, cluster: Cluster
    ) -> None:
        # parallax, exo: a started stream is silently cut.
        victim = cluster.worker_of(stage)
        asked = Asked(request_of(max_tokens=4000), cluster.target)
        asked.start()
        asked.wait_for_tokens(3)
        assert cluster.coordinator is not None
        cluster.coordinator.signal(signal.SIGTERM)
        victim.kill()
        assert cluster.coordinator.wait() == 0
        with suppress(StagemeshRpcError):
            assert len(asked.result()) == 4000
        assert asked.error is None or asked.error.code in ("shutting_down", "unreachable")
        cluster.start_coordinator()

    def test_coordinator_killed_while_answering_is_told_and_asked_again(
        self, cluster: Cluster
    ) -> None:
        asked = Asked(request_of(max_tokens=2000), cluster.target)
        asked.start()
        asked.wait_for_tokens(3)
        assert cluster.coordinator is not None
        cluster.coordinator.signal(signal.SIGKILL)
        cluster.coordinator.wait()
        with pytest.raises(Exception, match="no mesh answers"):
            asked.result()
        cluster.start_coordinator()
        # A client waits for a server that went away, not for one that never was there.
        cluster.wait_until(lambda _: True, "answering")
        with asking(cluster, *REQUESTS):
            cluster.wait_until(lambda state: state.ready, "serving again")


class TestFrozen:
    """SIGSTOP: a process that is there and does nothing."""

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_frozen_for_a_while_costs_no_token(self, stage: int, cluster: Cluster) -> None:
        victim = psutil.Process(cluster.worker_of(stage).pid)

        def disturb() -> None:
            victim.suspend()
            time.sleep(FREEZE_SECONDS)  # is the fault
            victim.resume()

        disturbed(cluster, disturb)

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_frozen_for_ever_is_replaced(self, stage: int, cluster: Cluster) -> None:
        # vllm#45414, #45388: nothing moves and nobody notices.
        victim = cluster.worker_of(stage)
        try:
            disturbed(cluster, psutil.Process(victim.pid).suspend)
        finally:
            victim.kill()


@pytest.fixture(scope="module")
def shared_ranks(tiny_chat: TinyChat) -> Iterator[Cluster]:
    """One stage of two ranks and a worker to spare, kept over the tests that use it."""
    with cluster_of(str(tiny_chat.model.folder), num_stages=1, num_ranks=2) as cluster:
        yield cluster


@pytest.fixture
def ranks(shared_ranks: Cluster) -> Iterator[Cluster]:
    """Whole before the test; nothing is held in it after."""
    with kept_whole(shared_ranks):
        yield shared_ranks


class TestRanks:
    """A rank that ends: the other may not stay in a collective."""

    @pytest.mark.parametrize("rank", RANKS)
    def test_rank_killed_in_decode_costs_no_token(self, rank: int, ranks: Cluster) -> None:
        # vllm#29405, #45414: the other ranks wait in their collective for ever.
        disturbed(ranks, ranks.worker_of(0, rank).kill)

    @pytest.mark.parametrize("rank", RANKS)
    def test_rank_killed_in_the_middle_of_a_prefill_costs_no_token(
        self, rank: int, ranks: Cluster
    ) -> None:
        victim = ranks.worker_of(0, rank)
        with asking(ranks, REQUESTS[2]) as (asked,):
            ranks.wait_until(lambda state: state.replicas[0].num_steps_in_flight > 0, "in a step")
            assert not asked.tokens
            victim.kill()

    def test_rank_killed_while_idle_is_replaced_before_the_next_request(
        self, ranks: Cluster
    ) -> None:
        epoch = ranks.wait_until(lambda state: state.ready, "ready").replicas[0].epoch
        ranks.worker_of(0, 1).kill()
        ranks.wait_until(
            lambda state: state.ready and state.replicas[0].epoch != epoch, "in another epoch"
        )
        with asking(ranks, *REQUESTS[:2]):
            pass

    def test_rank_frozen_for_ever_is_replaced(self, ranks: Cluster) -> None:
        victim = ranks.worker_of(0, 1)
        try:
            disturbed(ranks, psutil.Process(victim.pid).suspend)
        finally:
            victim.kill()
