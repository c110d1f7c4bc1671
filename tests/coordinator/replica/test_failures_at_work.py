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
from coordinator.membership.membership import Membership
from coordinator.membership.worker_record import WorkerIdentity, WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.replica_layout import plan_replica
from coordinator.planning.worker_assignment import assign_workers
from coordinator.replica.fault_attribution import attribute
from runtime.errors import StageFailedError
from runtime.model_config.model_config import load_model_config
from runtime.version import PROTOCOL_VERSION
from tests.coordinator.replica.test_faulty_workers import used
from tests.coordinator.toy_mesh import collect, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPT = (5, 6, 7)
POISON = (77, 77, 77)


@pytest.mark.parametrize("fault", ["fails_from", "stalls_from"])
async def test_worker_that_fails_at_work_gives_way_to_a_spare_and_no_request_is_lost(
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
    # Nothing is proven: it stands by.
    assert len(state.workers) == 3


async def test_request_that_ends_epochs_on_every_worker_puts_none_out(toy_folder: Path) -> None:
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
    """A replica without a mesh: workers, requests, and what ends epochs."""

    def __init__(self, plan: tuple[Assignment, ...], num_workers: int) -> None:
        self.plan = plan
        self.membership = Membership(max_workers=num_workers)
        self.workers = [self.membership.join(_identity(n)) for n in range(num_workers)]
        self.alone: int | None = None
        self.suspects = PoisonRequestDetector(self._isolate)
        self.failed: list[int] = []

    def _isolate(self, request: int | None) -> None:
        self.alone = request

    def run_epoch(
        self, requests: set[int], bad: set[WorkerRecord], poison: set[int], who: int
    ) -> bool:
        """One epoch in which all `requests` run that may; whether it ended."""
        workers = assign_workers(self.plan, self.membership.free)
        assert workers is not None
        self.membership.fault_scores.clear(workers, ())
        running = requests if self.alone is None else requests & {self.alone}
        for request in running:
            self.suspects.started(request)
        culprits = [worker for worker in workers if worker in bad]
        if running & poison:
            culprits.append(workers[who % len(workers)])
        if not running or not culprits:
            for request in running:
                self.suspects.made_progress(request)
                self.suspects.forget(request)
            requests -= running
            return False
        cause = StageFailedError(cause="position", detail="", workers=(culprits[0].name,))
        over_limit = attribute(cause, workers, self.membership.fault_scores, 0.0, was_serving=True)
        assert over_limit == []
        culprit = self.suspects.end_epoch()
        if culprit is not None:
            self.failed.append(culprit)
            self.suspects.forget(culprit)
            requests.discard(culprit)
            self.membership.fault_scores.reset_failures(self.workers)
        return True


def _identity(number: int) -> WorkerIdentity:
    return WorkerIdentity(
        PROTOCOL_VERSION, "b", f"w{number}", "here", f"127.0.0.1:{1 + number}", "cpu", "", 0, 1
    )


def _plan(folder: Path) -> tuple[Assignment, ...]:
    options = CoordinatorOptions(model="smollm2", pp=2)
    return plan_replica(options, load_model_config(folder), "f00", 0)


def _arrivals(draw: Any) -> Iterator[set[int]]:
    """New requests before each epoch, with ids that grow."""
    first = 0
    while True:
        count = draw(st.integers(0, 3))
        yield set(range(first, first + count))
        first += count


@given(data=st.data(), place_of_bad=st.integers(0, 2))
def test_blame_worker_that_always_fails_at_work_is_passed_over_after_two_ends(
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
def test_blame_of_what_poison_requests_end_puts_nobody_out_and_fails_no_other(
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
