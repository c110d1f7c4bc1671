"""Deaths in one of two replicas: the other one goes on, and takes the requests over at once.

There is no spare, and no worker is started before the answers have ended: they end because the
other replica took them over.

`make test-faults` runs it; its name keeps it out of other runs, because it takes minutes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stagemesh import Client
from stagemesh.faults.fault_proxy import Faults
from tests.faults.asking import REQUESTS, Asked, asking
from tests.faults.cluster import Cluster, Layout, Place, cluster_of, kept_whole
from tests.faults.phases import LONG_PROMPT, PREFILL, SEND, hold_prefill
from tests.integration.tiny_chat import TinyChat

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

STAGES = (0, 1)
# Enough that both replicas have some.
MANY = (*REQUESTS, *REQUESTS)
# So that a second or two pass before a worker starts to load.
SLOW = Faults(bytes_per_second=1000)


@pytest.fixture(scope="module")
def shared_replicas(tiny_chat: TinyChat) -> Iterator[Cluster]:
    """Two pipelines of two stages, kept over the tests that use them."""
    with cluster_of(str(tiny_chat.model.folder), Layout(dp=2, num_spares=0)) as cluster:
        yield cluster


@pytest.fixture
def replicas(shared_replicas: Cluster) -> Iterator[Cluster]:
    """Whole before the test; nothing is held in it after."""
    with kept_whole(shared_replicas):
        yield shared_replicas


@contextmanager
def other_goes_on(cluster: Cluster, victim: int) -> Iterator[list[Asked]]:
    """MANY in flight over both replicas; at the end the victim is no replica, the other is one."""
    epoch = cluster.epoch(1 - victim)
    with asking(cluster, *MANY) as asked:
        for each in (*asked[:2], *asked[3:5]):  # all but the long prompts
            each.wait_for_tokens(3)
        cluster.wait_until(
            lambda state: all(replica.num_slots_used for replica in state.replicas), "shared out"
        )
        yield asked
    state = cluster.ready_state()
    assert not state.replicas[victim].serving
    assert state.replicas[1 - victim].serving
    assert state.replicas[1 - victim].epoch == epoch


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("replica", [0, 1])
def test_replica_with_a_stage_killed_in_decode_hands_its_requests_over(
    replica: int, stage: int, replicas: Cluster
) -> None:
    victim = replicas.worker_at(Place(stage, replica=replica))
    with other_goes_on(replicas, replica):
        victim.kill()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("bytes_per_second", "num_bytes"), [PREFILL, SEND], ids=["chunk", "send"])
def test_replica_with_a_stage_killed_in_prefill_hands_its_request_over(
    bytes_per_second: int, num_bytes: int, stage: int, replicas: Cluster
) -> None:
    for replica in range(2):
        hold_prefill(replicas, bytes_per_second, replica)
    with asking(replicas, LONG_PROMPT) as (asked,):
        state = replicas.wait_until(
            lambda state: any(replica.num_slots_used for replica in state.replicas), "busy"
        )
        (busy,) = (each.replica for each in state.replicas if each.num_slots_used)
        replicas.worker_at(Place(1, replica=busy)).frames.wait_for_bytes(num_bytes)
        assert not asked.tokens
        replicas.worker_at(Place(stage, replica=busy)).kill()
        replicas.worker_at(Place(1, replica=1 - busy)).heal()
    assert not replicas.ready_state().replicas[busy].serving


@pytest.mark.parametrize("stage", STAGES)
def test_replica_with_a_stage_killed_while_idle_leaves_the_mesh_ready(
    stage: int, replicas: Cluster
) -> None:
    replicas.worker_at(Place(stage, replica=1)).kill()
    state = replicas.wait_until(lambda state: not state.replicas[1].serving, "short of a replica")
    assert state.ready
    with asking(replicas, *REQUESTS):
        pass
    assert not replicas.ready_state().replicas[1].serving


def test_replacement_killed_while_it_loads_costs_the_other_replica_nothing(
    replicas: Cluster,
) -> None:
    victim = replicas.worker_at(Place(1, replica=0))
    with other_goes_on(replicas, 0):
        victim.kill()
        replacement = replicas.start_worker()
        replacement.calls.set(SLOW)
        replicas.wait_until(lambda state: state.replicas[0].phase.startswith("loading"), "loading")
        replacement.kill()


@pytest.mark.parametrize("stage", STAGES)
def test_replica_with_a_stage_killed_while_it_drains_hands_its_requests_over(
    stage: int, replicas: Cluster
) -> None:
    leaver, victim = (replicas.worker_at(Place(each)) for each in (1 - stage, stage))
    with other_goes_on(replicas, 0):
        leaver.command.process.terminate()
        replicas.wait_for_log("worker_leaves", leaver.address)
        victim.kill()
    assert leaver.command.wait() == 0


def test_replica_drained_hands_its_requests_over(replicas: Cluster) -> None:
    leavers = [replicas.worker_at(Place(stage, replica=1)) for stage in STAGES]
    with other_goes_on(replicas, 1), Client(replicas.mesh_address) as operator:
        left = operator.drain("1")
    assert sorted(left) == sorted(leaver.address for leaver in leavers)
    assert [leaver.command.wait() for leaver in leavers] == [0, 0]


@pytest.mark.parametrize("stage", STAGES)
def test_halves_that_are_left_of_both_replicas_become_one(stage: int, replicas: Cluster) -> None:
    victims = [
        replicas.worker_at(Place(stage, replica=0)),
        replicas.worker_at(Place(1 - stage, replica=1)),
    ]
    with asking(replicas, *MANY) as asked:
        asked[0].wait_for_tokens(3)
        for victim in victims:
            victim.kill()
    assert sum(replica.serving for replica in replicas.ready_state().replicas) == 1


def test_replica_with_a_stage_frozen_for_ever_hands_its_requests_over(replicas: Cluster) -> None:
    victim = replicas.worker_at(Place(1, replica=0))
    try:
        with other_goes_on(replicas, 0):
            victim.freeze()
    finally:
        victim.kill()
