"""When an epoch that could go on is ended, and which spares load which parts before."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.membership.assignment import Assignment
from coordinator.membership.membership import Membership
from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.replica_layout import plan_replica
from coordinator.replica import epoch_supervisor
from coordinator.replica.epoch_supervisor import EpochSupervisor, is_planned
from runtime.errors import EpochEndedError, StagemeshError, WorkerFailedError
from runtime.model_config.model_config import load_model_config
from tests.coordinator.fake_records import make_identity, make_membership

OPTIONS = CoordinatorOptions(model="smollm2", pp=2)
Loads = list[tuple[str, int]]


class FakeEngine:
    """An engine whose requests end when the test sets `idle`."""

    def __init__(self, *, is_serving: bool = True) -> None:
        self.replica = 0
        self.is_serving = is_serving
        self.is_draining = False
        self.idle = asyncio.Event()

    def drain(self) -> None:
        self.is_draining = True

    async def drained(self) -> None:
        await self.idle.wait()


@pytest.fixture
def plans(toy_folder: Path) -> Callable[[int], tuple[Assignment, ...]]:
    """The plan of replica 0 with a number of stages."""
    config = load_model_config(toy_folder)
    return lambda pp: plan_replica(CoordinatorOptions(model="smollm2", pp=pp), config, "f00", 0)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """Worker ids and stages that are loaded; a worker named `bad...` fails to."""
    done: Loads = []

    class Client:
        def __init__(self, worker: WorkerRecord) -> None:
            self._worker = worker

        @classmethod
        @asynccontextmanager
        async def connect(cls, worker: WorkerRecord, _: object) -> AsyncIterator[Any]:
            yield cls(worker)

        async def load(self, part: Assignment, progress: object) -> None:
            name = self._worker.identity.worker_id
            if name.startswith("bad"):
                raise WorkerFailedError(worker=self._worker.name, reason="no memory")
            done.append((name, part.stage))

    monkeypatch.setattr(epoch_supervisor, "StageClient", Client)
    return done


async def supervise(
    membership: Membership,
    workers: tuple[WorkerRecord, ...],
    assignments: tuple[Assignment, ...],
    requested: tuple[Assignment, ...],
    engine: FakeEngine,
) -> tuple[EpochSupervisor, "asyncio.Task[EpochEndedError]"]:
    """A supervisor of an epoch of `workers`, and the task that returns its end."""
    for worker, part in zip(workers, assignments, strict=True):
        worker.replica, worker.held = 0, part
    supervisor = EpochSupervisor(
        assignments, requested, workers, cast("Any", engine), membership, OPTIONS
    )

    async def end() -> EpochEndedError:
        with pytest.raises(EpochEndedError) as raised:
            await supervisor.run()
        return raised.value

    task = asyncio.create_task(end())
    await asyncio.sleep(0)
    return supervisor, task


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (EpochEndedError(cause="drained", detail=""), True),
        (EpochEndedError(cause="regrown", detail=""), True),
        (EpochEndedError(cause="position", detail=""), False),
        (WorkerFailedError(worker="a:1", reason=""), False),
    ],
)
def test_is_planned_for_ends_of_the_supervisor_only(cause: StagemeshError, expected: bool) -> None:
    assert is_planned(cause) is expected


@pytest.mark.parametrize(("num_faults", "ends"), [(0, True), (1, True), (2, False)])
async def test_degraded_replica_ends_when_a_worker_with_few_faults_completes_the_plan(
    plans: Callable[[int], tuple[Assignment, ...]], num_faults: int, ends: bool
) -> None:
    membership = make_membership("a")
    _, end = await supervise(membership, membership.workers, plans(1), plans(2), FakeEngine())
    assert not end.done()
    late = make_identity("late")
    for number in range(num_faults):
        faulty = membership.join(late)
        membership.fault_scores.record_fault([faulty], now=float(number))
        membership.leave(faulty, "it was evicted")
    membership.join(late)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert end.done() is ends
    if ends:
        assert (await end).cause == "regrown"
    end.cancel()


async def test_complete_replica_does_not_end_when_workers_join(
    plans: Callable[[int], tuple[Assignment, ...]],
) -> None:
    membership = make_membership("ab")
    _, end = await supervise(membership, membership.workers, plans(2), plans(2), FakeEngine())
    membership.join(make_identity("late"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not end.done()
    end.cancel()


async def test_worker_that_drains_before_serving_ends_the_epoch_at_once(
    plans: Callable[[int], tuple[Assignment, ...]],
) -> None:
    membership, engine = make_membership("ab"), FakeEngine(is_serving=False)
    workers = membership.workers
    _, end = await supervise(membership, workers, plans(2), plans(2), engine)
    membership.drain(workers[1], deadline=1e9)
    cause = await end
    assert (cause.cause, cause.detail) == ("drained", "worker b:1 leaves")
    assert not engine.is_draining


async def test_worker_that_drains_is_replaced_by_a_spare_that_loads_its_part_first(
    plans: Callable[[int], tuple[Assignment, ...]], loads: Loads
) -> None:
    membership, engine = make_membership("abc"), FakeEngine()
    workers = membership.workers[:2]
    supervisor, end = await supervise(membership, workers, plans(2), plans(2), engine)
    membership.drain(workers[1], deadline=asyncio.get_running_loop().time() + 60.0)
    assert (await end).cause == "drained"
    assert engine.is_draining
    assert loads == [("c", 1)]
    assert [(each.identity.worker_id, each.replica) for each in supervisor.spares] == [("c", 0)]


async def test_spare_that_fails_to_load_is_evicted_and_the_next_one_loads(
    plans: Callable[[int], tuple[Assignment, ...]], loads: Loads
) -> None:
    membership, engine = make_membership(["a", "b", "bad", "good"]), FakeEngine()
    workers = membership.workers[:2]
    supervisor, end = await supervise(membership, workers, plans(2), plans(2), engine)
    membership.drain(workers[0], deadline=asyncio.get_running_loop().time() + 60.0)
    assert (await end).cause == "drained"
    assert loads == [("good", 0)]
    assert [each.identity.worker_id for each in membership.workers] == ["a", "b", "good"]
    assert [each.identity.worker_id for each in supervisor.spares] == ["good"]


@pytest.mark.parametrize("ends_by", ["requests", "deadline"])
async def test_worker_that_drains_without_a_spare_waits_for_requests_or_its_deadline(
    plans: Callable[[int], tuple[Assignment, ...]], ends_by: str
) -> None:
    membership, engine = make_membership("ab"), FakeEngine()
    workers = membership.workers
    _, end = await supervise(membership, workers, plans(2), plans(2), engine)
    seconds = 60.0 if ends_by == "requests" else 0.0
    membership.drain(workers[0], deadline=asyncio.get_running_loop().time() + seconds)
    if ends_by == "requests":
        engine.idle.set()
    assert (await end).detail == "worker a:1 leaves"
