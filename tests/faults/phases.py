"""kill -9 of one worker at each phase of its life, the same for stages and for ranks.

Each function is one test: it kills the worker at a position, and the answers in flight then are
compared with an undisturbed run. What takes too short a time to be met is held open by a fault
proxy: a long prompt between stages is throttled, a spare that is to load is stalled, so that the
kill comes in the phase whatever the machine does.
"""

from collections.abc import Callable

from stagemesh.faults.fault_proxy import Faults
from tests.faults.asking import LONG, REQUESTS, asking, disturbed, request_of, undisturbed
from tests.faults.cluster import Cluster, Place

# Of the 384 kB that the long prompt's activation has between two stages, 16 kB a chunk.
PREFILL = (400_000, 100_000)
SEND = (40_000, 20_000)
LONG_PROMPT = request_of(LONG, max_tokens=30)


def in_decode(cluster: Cluster, place: Place) -> None:
    """All the requests have tokens, or are in their prefill."""
    # petals#587, #503, TGI#2593, llama.cpp#25938, vllm#29405: one dead shard ends everything.
    disturbed(cluster, cluster.worker_at(place).kill)


def in_prefill(cluster: Cluster, place: Place) -> None:
    """A few chunks of a long prompt are computed, one is being computed, others are to come."""
    _when_passed(cluster, place, *PREFILL)


def in_send(cluster: Cluster, place: Place) -> None:
    """In the middle of an activation's way from one stage to the next."""
    _when_passed(cluster, place, *SEND)


def while_idle(cluster: Cluster, place: Place) -> None:
    """Nobody asks; the replacement serves before the next request."""
    epoch = cluster.epoch(place.replica)
    cluster.worker_at(place).kill()
    cluster.wait_for_epoch_after(epoch, place.replica)
    with asking(cluster, *REQUESTS[:2]):
        pass


def while_loading(cluster: Cluster, place: Place) -> None:
    """The spare that replaces it dies while it loads; another one takes over."""
    # The coordinator waits for the spare behind a stalled link: reading so small a model takes
    # no time in which a kill could be placed.
    spare, victim = cluster.spare(), cluster.worker_at(place)
    with asking(cluster, *REQUESTS[:2]) as asked:
        asked[0].wait_for_tokens(3)
        spare.calls.set(Faults(is_stalled=True))
        victim.kill()
        cluster.wait_until(lambda state: state.phase.startswith("loading"), "loading")
        spare.kill()
        cluster.start_worker()


def while_draining(cluster: Cluster, place: Place) -> None:
    """It drains, and still serves while the spare loads its part."""
    # parallax, exo: a started stream is silently cut.
    spare, victim = cluster.spare(), cluster.worker_at(place)
    spare.calls.set(Faults(is_stalled=True))
    with asking(cluster, *REQUESTS[:2]) as asked:
        asked[0].wait_for_tokens(3)
        victim.command.process.terminate()
        cluster.wait_for_log("worker_leaves", victim.address)
        assert victim.is_alive
        victim.kill()
        spare.heal()


PHASES: dict[str, Callable[[Cluster, Place], None]] = {
    "decode": in_decode,
    "prefill": in_prefill,
    "send": in_send,
    "idle": while_idle,
    "loading": while_loading,
    "draining": while_draining,
}


def hold_prefill(cluster: Cluster, bytes_per_second: float, replica: int = 0) -> None:
    """Throttles the link to the second stage, so that the prefill of `LONG_PROMPT` takes seconds.

    The undisturbed answer is computed first: its bytes would pass for those of the test's request.
    """
    undisturbed(cluster, LONG_PROMPT)
    faults = Faults(bytes_per_second=bytes_per_second)
    for rank in range(cluster.layout.tp[1]):
        cluster.worker_at(Place(1, rank, replica)).frames.set(faults)


def _when_passed(cluster: Cluster, place: Place, bytes_per_second: int, num_bytes: int) -> None:
    """Kills once so much of a long prompt has passed between the stages."""
    victim, receiver = cluster.worker_at(place), cluster.worker_at(Place(1))
    hold_prefill(cluster, bytes_per_second)
    with asking(cluster, LONG_PROMPT) as (asked,):
        receiver.frames.wait_for_bytes(num_bytes)
        assert not asked.tokens
        victim.kill()
        receiver.heal()
