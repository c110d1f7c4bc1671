"""Two workers that no longer reach each other, without a spare: what is served, and how.

`make test-faults` runs it; its name keeps it out of other runs, because it takes minutes.
"""

from collections.abc import Iterator

import pytest

from stagemesh.faults.fault_proxy import Faults
from tests.faults.asking import REQUESTS, asking
from tests.faults.cluster import Cluster, Layout, Place, cluster_of
from tests.integration.tiny_chat import TinyChat

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DEAD = Faults(is_stalled=True)


@pytest.fixture
def pair(tiny_chat: TinyChat) -> Iterator[Cluster]:
    """Two stages, and nobody else."""
    with cluster_of(str(tiny_chat.model.folder), Layout(num_spares=0)) as cluster:
        yield cluster


def test_link_that_is_dead_one_way_has_the_workers_change_places(pair: Cluster) -> None:
    first, second = pair.worker_at(Place(0)), pair.worker_at(Place(1))
    with asking(pair, REQUESTS[1]) as (asked,):
        asked.wait_for_tokens(5)
        second.frames.set(DEAD)
    assert (pair.worker_at(Place(0)), pair.worker_at(Place(1))) == (second, first)


def test_link_that_is_dead_both_ways_leaves_one_stage(pair: Cluster) -> None:
    workers = [pair.worker_at(Place(stage)) for stage in range(2)]
    with asking(pair, REQUESTS[1]) as (asked,):
        asked.wait_for_tokens(5)
        for worker in workers:
            worker.frames.set(DEAD)
    state = pair.ready_state()
    assert len(state.replicas[0].stages) == 1
    assert state.phase.startswith("serving with 1 of 2 stages (after: worker ")
    assert all(worker.address in state.phase for worker in workers)
