"""A worker that passes every canary and fails at work, and a request that makes workers fail.

From outside both look alike: the epoch ends, again and again.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from coordinator.engine.poison_request_detector import PoisonRequestDetector
from coordinator.membership.assignment import Assignment
from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.replica_layout import plan_replica
from coordinator.planning.worker_assignment import assign_workers
from coordinator.replica.fault_attribution import attribute
from runtime.errors import StageFailedError
from runtime.model_config.model_config import load_model_config
from tests.coordinator.fake_records import make_membership
from tests.coordinator.replica.test_faulty_workers import used
from tests.coordinator.toy_mesh import collect, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPT = (5, 6, 7)
POISON = (77, 77, 77)


@pytest.mark.parametrize("fault", ["fails_from", "stalls_from"])
async def test_worker_that_fails_while_serving_is_replaced_by_a_spare_and_no_request_is_lost(
    toy_folder: Path, fault: str
) -> None:
    async with toy_mesh(toy_folder, num_workers=3, step_seconds=2.0) as mesh:
        await mesh.until_ready()
        setattr(mesh.workers[1].stage.behaviour, fault, 60)
        answer = (await collect(mesh.infer(token_request(PROMPT, max_tokens=200))))[0]
        state = await mesh.until_ready()
    assert answer.tokens == toy_answer(PROMPT, 200)
    assert used(state) == ["w0", "w2"]
    assert state.replicas[0].epoch.counter == 3
    # The request may be the cause, so the worker stays as a spare.
    assert len(state.workers) == 3


async def test_request_that_ends_epochs_on_every_worker_evicts_none(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=3) as mesh:
        await mesh.until_ready()
        for worker in mesh.workers:
            worker.stage.behaviour.poison = POISON
        with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError, match="at 3 ends"):
            await collect(mesh.infer(token_request(POISON)))
        answer = (await collect(mesh.infer(token_request(PROMPT))))[0]
        state = await mesh.until_ready()
    assert answer.tokens == toy_answer(PROMPT, 8)
    assert len(state.workers) == 3
    assert not [log for log in logs if log["event"] == "worker_left"]


class World:
    """A replica without a mesh: workers, requests, and their faults."""

    def __init__(self, plan: tuple[Assignment, ...], num_workers: int) -> None:
        self.plan = plan
        self.membership = make_membership(f"w{number}" for number in range(num_workers))
        self.workers = list(self.membership.workers)
        self.isolated_id: int | None = None
        self.detector = PoisonRequestDetector(self._isolate)
        self.failed: list[int] = []

    def _isolate(self, request: int | None) -> None:
        self.isolated_id = request

    def run_epoch(
        self, requests: set[int], bad: set[WorkerRecord], poison: set[int], who: int
    ) -> bool:
        """Runs an epoch with all `requests` that may run; returns whether it ended."""
        workers = assign_workers(self.plan, self.membership.free)
        assert workers is not None
        self.membership.fault_scores.clear(workers, ())
        running = requests if self.isolated_id is None else requests & {self.isolated_id}
        for request in running:
            self.detector.started(request)
        culprits = [worker for worker in workers if worker in bad]
        if running & poison:
            culprits.append(workers[who % len(workers)])
        if not running or not culprits:
            for request in running:
                self.detector.made_progress(request)
                self.detector.forget(request)
            requests -= running
            return False
        cause = StageFailedError(cause="position", detail="", workers=(culprits[0].name,))
        over_limit = attribute(cause, workers, self.membership.fault_scores, 0.0, was_serving=True)
        assert over_limit == []
        culprit = self.detector.end_epoch()
        if culprit is not None:
            self.failed.append(culprit)
            self.detector.forget(culprit)
            requests.discard(culprit)
            self.membership.fault_scores.reset_failures(self.workers)
        return True


def _plan(folder: Path) -> tuple[Assignment, ...]:
    options = CoordinatorOptions(model="smollm2", pp=2)
    return plan_replica(options, load_model_config(folder), "f00", 0)


def _arrivals(draw: Any) -> Iterator[set[int]]:
    """Sets of new requests, one before each epoch, with increasing ids."""
    first = 0
    while True:
        count = draw(st.integers(0, 3))
        yield set(range(first, first + count))
        first += count


@given(data=st.data(), place_of_bad=st.integers(0, 2))
def test_worker_that_always_fails_while_serving_is_replaced_after_two_ends(
    toy_folder: Path, data: st.DataObject, place_of_bad: int
) -> None:
    world = World(_plan(toy_folder), 3)
    bad = {world.workers[place_of_bad]}
    requests: set[int] = set()
    num_ends = 0
    for arrived in islice(_arrivals(data.draw), 12):
        requests |= arrived
        num_ends += world.run_epoch(requests, bad, set(), 0)
    while requests:
        num_ends += world.run_epoch(requests, bad, set(), 0)
    assert num_ends <= 2
    assert world.failed == []


@given(data=st.data(), poison=st.sets(st.integers(0, 12), max_size=3))
def test_poison_requests_evict_no_worker_and_fail_no_other_request(
    toy_folder: Path, data: st.DataObject, poison: set[int]
) -> None:
    world = World(_plan(toy_folder), 3)
    requests: set[int] = set()
    came: set[int] = set()
    for arrived in islice(_arrivals(data.draw), 12):
        requests |= arrived
        came |= arrived
        world.run_epoch(requests, set(), poison, data.draw(st.integers(0, 1)))
    for _ in range(100):
        if not requests:
            break
        world.run_epoch(requests, set(), poison, data.draw(st.integers(0, 1)))
    assert sorted(world.failed) == sorted(came & poison)
    assert world.membership.workers == tuple(world.workers)
    if world.failed:
        assert not any(worker.failure_score for worker in world.workers)
