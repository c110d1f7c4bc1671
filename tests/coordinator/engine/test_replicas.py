"""Several replicas behind one API: who takes what, and what goes on elsewhere when one ends."""

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from protos import mesh_pb2
from runtime.rpc.channels import error_from_rpc
from tests.coordinator.toy_mesh import Answer, ToyMesh, collect, read_one, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPT = (5, 6, 7)
POISON = (77, 77, 77)


def worker_ids(state: mesh_pb2.GetStateResponse, replica: int) -> set[str]:
    """The fake workers of a replica."""
    return {name for stage in state.replicas[replica].stages for name in stage.worker_ids}


async def kill_one_of(mesh: ToyMesh, replica: int) -> None:
    """Kills the first worker of a replica."""
    names = worker_ids(await mesh.state(), replica)
    await next(w for w in mesh.workers if w.stage.worker_id in names).kill()


async def sample(mesh: ToyMesh, name: str, replica: int) -> float:
    """One counter of one replica."""
    async with mesh.http() as http:
        text = (await http.get("/metrics")).text
    line = f'stagemesh_{name}_total{{replica="{replica}"}}'
    return float(next(each for each in text.splitlines() if each.startswith(line)).split()[-1])


async def test_replicas_share_requests_and_each_is_counted_once(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, dp=2) as mesh:
        await mesh.until_ready()
        calls = [collect(mesh.infer(token_request((n, n), max_tokens=30))) for n in range(20)]
        answers = await asyncio.gather(*calls)
        counts = [await sample(mesh, "replica_requests", replica) for replica in range(2)]
        state = await mesh.until_idle()
    assert [a[0].tokens for a in answers] == [toy_answer((n, n), 30) for n in range(20)]
    assert sum(counts) == 20
    assert min(counts) >= 5
    assert worker_ids(state, 0) | worker_ids(state, 1) == {"w0", "w1", "w2", "w3"}


async def test_replicas_one_ends_its_requests_go_on_with_the_other_at_once(
    toy_folder: Path,
) -> None:
    """Case 16 (TGI#2593, llama.cpp#25938): one dead shard does not end everything."""
    async with toy_mesh(toy_folder, dp=2) as mesh:
        await mesh.until_ready()
        calls = [mesh.infer(token_request((n, n), max_tokens=200)) for n in range(8)]
        answers: list[dict[int, Answer]] = [{} for _ in calls]
        for call, answer in zip(calls, answers, strict=True):
            await read_one(call, answer)
        await kill_one_of(mesh, 1)
        await asyncio.gather(*(collect(c, a) for c, a in zip(calls, answers, strict=True)))
        state = await mesh.state()
        moved = await sample(mesh, "handovers", 1)
        counts = [await sample(mesh, "replica_requests", replica) for replica in range(2)]
    assert [a[0].tokens for a in answers] == [toy_answer((n, n), 200) for n in range(8)]
    assert state.ready
    assert not state.replicas[1].serving
    assert moved >= 1
    assert sum(counts) == 8


async def test_replicas_none_serves_is_not_ready_and_the_first_repaired_takes_all(
    toy_folder: Path,
) -> None:
    """Case 13 (vllm#11996): readiness reflects dead workers."""
    async with toy_mesh(toy_folder, dp=2) as mesh:
        await mesh.until_ready()
        calls = [mesh.infer(token_request((n, n), max_tokens=200)) for n in range(4)]
        answers: list[dict[int, Answer]] = [{} for _ in calls]
        for call, answer in zip(calls, answers, strict=True):
            await read_one(call, answer)
        for replica in range(2):
            await kill_one_of(mesh, replica)
        await mesh.until(lambda state: not state.ready)
        async with mesh.http() as http:
            assert (await http.get("/ready")).status_code == 503
            assert (await http.get("/health")).status_code == 200
        # The two that are left are of different replicas: together they make a whole one.
        await mesh.until(lambda state: state.ready)
        await asyncio.gather(*(collect(c, a) for c, a in zip(calls, answers, strict=True)))
    assert [a[0].tokens for a in answers] == [toy_answer((n, n), 200) for n in range(4)]


async def test_replicas_request_that_ends_epochs_is_failed_and_others_go_on(
    toy_folder: Path,
) -> None:
    """Case 14 (TGI#1763): only the faulty request ends."""
    async with toy_mesh(toy_folder, dp=2, behaviour={"poison": POISON}) as mesh:
        await mesh.until_ready()
        prompts = [(n, n) for n in range(4)]
        others = [collect(mesh.infer(token_request(p, max_tokens=300))) for p in prompts]
        running = [asyncio.create_task(other) for other in others]
        await mesh.until(lambda state: state.num_running == 4)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(mesh.infer(token_request(POISON)))
        answers = await asyncio.gather(*running)
        await mesh.until_ready()
    assert [answer[0].tokens for answer in answers] == [toy_answer(p, 300) for p in prompts]
    assert error_from_rpc(caught.value)[0] == "epoch_ended"
    assert "ran at 3 ends" in error_from_rpc(caught.value)[1]


async def test_replicas_late_one_gets_its_part_of_what_waits(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, dp=2, num_workers=2, max_sequences=2) as mesh:
        await mesh.until(lambda state: state.ready)
        calls = [collect(mesh.infer(token_request((n, n), max_tokens=200))) for n in range(8)]
        running = [asyncio.create_task(call) for call in calls]
        await mesh.until(lambda state: state.num_waiting == 6)
        for number in range(2, 4):
            await mesh.add_worker(f"w{number}")
        answers = await asyncio.gather(*running)
        counts = [await sample(mesh, "replica_requests", replica) for replica in range(2)]
    assert [a[0].tokens for a in answers] == [toy_answer((n, n), 200) for n in range(8)]
    assert sum(counts) == 8
    assert counts[1] >= 2


async def test_replicas_prompts_that_begin_alike_go_to_the_same(toy_folder: Path) -> None:
    shared = tuple(n % 90 for n in range(256))
    async with toy_mesh(toy_folder, dp=2) as mesh:
        await mesh.until_ready()
        busy = asyncio.create_task(collect(mesh.infer(token_request((1, 1), max_tokens=100))))
        await mesh.until(lambda state: state.num_running == 1)
        await collect(mesh.infer(token_request(shared, max_tokens=2)))
        await busy
        for number in range(5):
            await collect(mesh.infer(token_request((*shared, number), max_tokens=2)))
        counts = [await sample(mesh, "replica_requests", replica) for replica in range(2)]
    assert counts == [1, 6]
