"""A replica whose stages have several ranks: all are opened, connected and read."""

import asyncio
from pathlib import Path

from protos import mesh_pb2
from tests.coordinator.fake_worker import fake_worker
from tests.coordinator.toy_mesh import collect, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPT = (5, 6, 7)


async def test_replica_stages_of_two_ranks_answer_and_report_each_rank(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, tp=(2,)) as mesh:
        answers = await collect(mesh.infer(token_request(PROMPT, max_tokens=20)))
        state = await mesh.until_ready()
        openings = [worker.stage.opening for worker in mesh.workers]
    assert answers[0].tokens == toy_answer(PROMPT, 20)
    assert [(o.stage, o.rank, len(o.next), o.num_senders) for o in openings] == [
        (0, 0, 2, 1),
        (0, 1, 2, 1),
        (1, 0, 0, 2),
        (1, 1, 0, 2),
    ]
    first, last = state.replicas[0].stages
    assert [(rank.rank, rank.worker_id) for rank in first.ranks] == [(0, "w0"), (1, "w1")]
    assert list(last.worker_ids) == ["w2", "w3"]
    assert (first.weights_bytes, first.ranks[1].weights_bytes) == (200, 100)


async def test_replica_over_nccl_with_workers_on_cpus_is_refused_before_anything_is_loaded(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, num_workers=0, pp=1, tp=(2,), backend="nccl") as mesh:
        cpu = mesh_pb2.Device(kind="cpu")
        async with fake_worker("a") as first, fake_worker("b") as second:
            await first.join_mesh(mesh.mesh, device=cpu)
            await second.join_mesh(mesh.mesh, device=cpu)
            state = await mesh.until(lambda state: bool(state.failure))
        assert "--backend nccl needs cuda devices for the ranks of stage 0" in state.failure
        assert f"worker {first.address} refused" in state.failure
        assert "this worker's is cpu" in state.failure
        assert (first.stage.num_loads, second.stage.num_loads) == (0, 0)


async def test_replica_failure_of_a_rank_other_than_0_ends_the_epoch_with_its_name(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, tp=(2,)) as mesh:
        await mesh.until_ready()
        mesh.workers[3].stage.behaviour.fail_at_step = 5
        reading = asyncio.create_task(collect(mesh.infer(token_request(PROMPT, max_tokens=20))))
        await mesh.until(lambda state: "stage 1, rank 1 at step" in state.phase)
        assert (await reading)[0].tokens == toy_answer(PROMPT, 20)
