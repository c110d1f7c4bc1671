"""Workers that drain: no request is lost, and no token changes."""

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest

from coordinator import coordinator
from coordinator.membership import fault_scores
from protos import mesh_pb2, mesh_pb2_grpc
from tests.coordinator.toy_mesh import Answer, collect, read_one, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPT = (5, 6, 7)


async def test_drain_worker_with_a_spare_is_replaced_during_an_answer(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=3) as mesh:
        call = mesh.infer(token_request(PROMPT, max_tokens=300))
        answers: dict[int, Answer] = {}
        await read_one(call, answers)
        leaving = mesh.workers[1]
        drained, _ = await asyncio.gather(mesh.drain(leaving.address), leaving.released())
        await collect(call, answers)
        state = await mesh.until_ready()
    assert drained == [leaving.address]
    assert answers[0].tokens == toy_answer(PROMPT, 300)
    assert [list(stage.worker_ids) for stage in state.replicas[0].stages] == [["w0"], ["w2"]]
    # The spare loaded before the epoch ended.
    assert [worker.stage.num_loads for worker in mesh.workers] == [1, 1, 1]


async def test_drain_worker_of_two_replicas_moves_its_requests_to_the_other(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, dp=2) as mesh:
        await mesh.until_ready()
        calls = [collect(mesh.infer(token_request((n, n), max_tokens=300))) for n in range(6)]
        running = [asyncio.create_task(call) for call in calls]
        await mesh.until(lambda state: min(each.num_slots_used for each in state.replicas) > 0)
        leaving = next(w for w in mesh.workers if w.stage.assignment.replica == 0)
        await asyncio.gather(mesh.drain(leaving.stage.worker_id), leaving.released())
        assert (await mesh.state()).ready
        answers = await asyncio.gather(*running)
    assert [a[0].tokens for a in answers] == [toy_answer((n, n), 300) for n in range(6)]


async def test_drain_replica_releases_all_of_its_workers(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, dp=2) as mesh:
        await mesh.until_ready()
        leaving = [w for w in mesh.workers if w.stage.assignment.replica == 1]
        draining = asyncio.create_task(mesh.drain("1"))
        await asyncio.gather(*(worker.released() for worker in leaving))
        drained = await draining
        state = await mesh.state()
    assert sorted(drained) == sorted(worker.address for worker in leaving)
    assert [replica.serving for replica in state.replicas] == [True, False]


async def test_drain_without_a_replacement_waits_for_running_requests(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        call = mesh.infer(token_request(PROMPT, max_tokens=100))
        answers: dict[int, Answer] = {}
        await read_one(call, answers)
        leaving = mesh.workers[0]
        await leaving.leave(grace_seconds=60.0)
        await asyncio.gather(leaving.released(), collect(call, answers))
        assert answers[0].tokens == toy_answer(PROMPT, 100)
        await mesh.until(lambda state: not state.ready)


async def test_drain_worker_at_its_deadline_leaves_and_the_answer_waits_for_another(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder) as mesh:
        call = mesh.infer(token_request(PROMPT, max_tokens=400))
        answers: dict[int, Answer] = {}
        await read_one(call, answers)
        mesh.workers[0].stage.behaviour.running.clear()  # so that it cannot finish in time
        await mesh.workers[0].leave(grace_seconds=0.1)
        await mesh.workers[0].released()
        await mesh.add_worker("replacement")
        await collect(call, answers)
        assert answers[0].tokens == toy_answer(PROMPT, 400)


async def test_drain_spare_leaves_at_once(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=3) as mesh:
        await mesh.until_ready()
        await mesh.workers[2].leave(grace_seconds=60.0)
        await mesh.workers[2].released()
        state = await mesh.until_ready()
    assert state.replicas[0].epoch.counter == 1


async def test_drain_faulty_spare_is_evicted_and_the_next_one_loads(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        call = mesh.infer(token_request(PROMPT, max_tokens=400))
        answers: dict[int, Answer] = {}
        await read_one(call, answers)
        leaving = mesh.workers[1]
        await leaving.leave(grace_seconds=60.0)
        await mesh.add_worker("broken", load_error=AssertionError("no"))
        await mesh.until(lambda state: len(state.workers) == 2)
        await mesh.add_worker("good")
        await leaving.released()
        await collect(call, answers)
        assert answers[0].tokens == toy_answer(PROMPT, 400)


async def test_drain_evicted_spare_loads_after_its_fault_score_has_decayed(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose link was cut for a minute is used again later."""
    monkeypatch.setattr(fault_scores, "HALF_LIFE_SECONDS", 0.05)
    monkeypatch.setattr(coordinator, "_DECAY_SECONDS", 0.01)
    async with toy_mesh(toy_folder) as mesh:
        call = mesh.infer(token_request(PROMPT, max_tokens=40))
        answers: dict[int, Answer] = {}
        await read_one(call, answers)
        staying, leaving = mesh.workers
        staying.stage.behaviour.running.clear()  # so that only a spare can replace the other
        await leaving.leave(grace_seconds=60.0)
        spare = await mesh.add_worker("spare", load_error=AssertionError("no"))
        await mesh.until(lambda state: len(state.workers) == 2)
        spare.stage.behaviour.load_error = None
        await spare.join_mesh(mesh.mesh)
        await leaving.released()
        staying.stage.behaviour.running.set()
        await collect(call, answers)
        assert answers[0].tokens == toy_answer(PROMPT, 40)


async def test_drain_unknown_target_names_the_command_that_lists_them(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        for target in ("nobody", "7", "9" * 20_000, "127.0.0.1:1"):
            with pytest.raises(grpc.aio.AioRpcError, match="stagemesh status") as caught:
                await mesh.drain(target)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
async def test_drain_invalid_grace_time_is_refused(toy_folder: Path, seconds: float) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        with pytest.raises(grpc.aio.AioRpcError, match="grace_seconds") as caught:
            await mesh.drain(mesh.workers[0].address, grace_seconds=seconds)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert len((await mesh.state()).workers) == 2


async def test_drain_at_a_clients_api_is_refused(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        request = mesh_pb2.DrainRequest(target=mesh.workers[0].address)
        with pytest.raises(grpc.aio.AioRpcError, match="--mesh"):
            await mesh_pb2_grpc.OperationsStub(mesh.channel).Drain(request)
        assert len((await mesh.until_ready()).workers) == 2


async def test_drain_every_worker_in_turn_under_load_loses_no_request(toy_folder: Path) -> None:
    """Case 17 (petals#587): replaces all parts of a running pipeline, one after the other."""
    async with toy_mesh(toy_folder, num_workers=3) as mesh:
        await mesh.until_ready()
        done = asyncio.Event()

        async def client(number: int) -> int:
            count = 0
            while not done.is_set():
                answer = await collect(mesh.infer(token_request((number, 1), max_tokens=60)))
                assert answer[0].tokens == toy_answer((number, 1), 60)
                count += 1
            return count

        running = [asyncio.create_task(client(number)) for number in range(4)]
        for worker in list(mesh.workers):
            await asyncio.gather(mesh.drain(worker.address), worker.released())
            await mesh.add_worker(f"after {worker.stage.worker_id}")
            await mesh.until_ready()
        done.set()
        counts = await asyncio.gather(*running)
        async with mesh.http() as http:
            metrics = (await http.get("/metrics")).text
    assert min(counts) >= 1
    assert f'stagemesh_replica_requests_total{{replica="0"}} {sum(counts)}.0' in metrics
