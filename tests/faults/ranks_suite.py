"""kill -9 and SIGSTOP of the ranks of a stage, at every phase and within a collective.

The traffic between ranks does not pass a proxy. By default it is memory of their host,
which no network corrupts; with `--backend gloo` it is sockets, but gloo dials from one rank to a
port of the other that both learn from a file as long as a connection is being made, in an encoding
of its own. So a rank is frozen there until the others wait for it in a collective, and then killed,
or one of those that wait: to the others that is what a lost or stalled connection is.

`make test-faults` runs it; its name keeps it out of other runs, because it takes minutes.
"""

import time
from collections.abc import Iterator

import pytest

from tests.faults.asking import REQUESTS, asking, disturbed
from tests.faults.cluster import Cluster, Layout, Place, cluster_of, kept_whole
from tests.faults.phases import PHASES
from tests.integration.tiny_chat import TinyChat

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FREEZE_SECONDS = 5.0
RANKS = (0, 1)
# Polls of the state without a step: the living ranks wait for the frozen one.
NUM_STILL_LOOKS = 10


@pytest.fixture(scope="module")
def shared_ranks(tiny_chat: TinyChat) -> Iterator[Cluster]:
    """A stage of two ranks, one of one, and a worker to spare, kept over the tests that use it."""
    with cluster_of(str(tiny_chat.model.folder), Layout(tp=(2, 1))) as cluster:
        yield cluster


@pytest.fixture
def ranks(shared_ranks: Cluster) -> Iterator[Cluster]:
    """Whole before the test; nothing is held in it after."""
    with kept_whole(shared_ranks):
        yield shared_ranks


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("phase", PHASES)
def test_rank_killed_costs_no_token(phase: str, rank: int, ranks: Cluster) -> None:
    # vllm#29405, #45414: the other ranks wait in their collective for ever.
    PHASES[phase](ranks, Place(0, rank))


def test_both_ranks_killed_at_once_cost_no_token(ranks: Cluster) -> None:
    victims = [ranks.worker_at(Place(0, rank)) for rank in RANKS]

    def disturb() -> None:
        for victim in victims:
            victim.kill()
        ranks.start_worker()

    disturbed(ranks, disturb)


@pytest.mark.parametrize("rank", RANKS)
def test_rank_frozen_for_a_while_costs_no_token(rank: int, ranks: Cluster) -> None:
    victim = ranks.worker_at(Place(0, rank))

    def disturb() -> None:
        victim.freeze()
        time.sleep(FREEZE_SECONDS)  # is the fault
        victim.thaw()

    disturbed(ranks, disturb)


@pytest.mark.parametrize("rank", RANKS)
def test_rank_frozen_for_ever_is_replaced(rank: int, ranks: Cluster) -> None:
    victim = ranks.worker_at(Place(0, rank))
    try:
        disturbed(ranks, victim.freeze)
    finally:
        victim.kill()


class TestWithinACollective:
    """One rank is frozen, so that the other waits for it; then either dies."""

    @pytest.mark.parametrize("victim", ["frozen", "waiting"])
    @pytest.mark.parametrize("rank", RANKS)
    def test_rank_killed_in_shared_memory_costs_no_token(
        self, rank: int, victim: str, ranks: Cluster
    ) -> None:
        kill_in_collective(ranks, rank, is_frozen_killed=victim == "frozen")

    @pytest.mark.parametrize("victim", ["frozen", "waiting"])
    @pytest.mark.parametrize("rank", RANKS)
    def test_rank_killed_in_gloo_costs_no_token(
        self, rank: int, victim: str, gloo: Cluster
    ) -> None:
        kill_in_collective(gloo, rank, is_frozen_killed=victim == "frozen")


@pytest.fixture(scope="module")
def shared_gloo(tiny_chat: TinyChat) -> Iterator[Cluster]:
    """One stage of two ranks that talk over sockets, and a worker to spare."""
    layout = Layout(tp=(2,), options=("--backend", "gloo"))
    with cluster_of(str(tiny_chat.model.folder), layout) as cluster:
        yield cluster


@pytest.fixture
def gloo(shared_gloo: Cluster) -> Iterator[Cluster]:
    """Whole before the test; nothing is held in it after."""
    with kept_whole(shared_gloo):
        yield shared_gloo


def kill_in_collective(cluster: Cluster, rank: int, *, is_frozen_killed: bool) -> None:
    """Freezes a rank and, once the other one waits for it, kills either."""
    frozen = cluster.worker_at(Place(0, rank))
    waiting = cluster.worker_at(Place(0, 1 - rank))
    with asking(cluster, *REQUESTS[:2]) as asked:
        asked[0].wait_for_tokens(3)
        frozen.freeze()
        wait_until_still(cluster)
        (frozen if is_frozen_killed else waiting).kill()
        if not is_frozen_killed:
            frozen.thaw()


def wait_until_still(cluster: Cluster) -> None:
    """Returns once steps are in flight and none has been made for some looks at the state."""
    looks = [-1] * NUM_STILL_LOOKS

    def is_still(num_steps: int, num_in_flight: int) -> bool:
        looks.append(num_steps)
        return num_in_flight > 0 and len(set(looks[-NUM_STILL_LOOKS:])) == 1

    cluster.wait_until(
        lambda state: is_still(state.replicas[0].num_steps, state.replicas[0].num_steps_in_flight),
        "still",
    )
