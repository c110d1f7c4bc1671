"""A replica that runs with fewer stages, and is completed again."""

from pathlib import Path

from tests.coordinator.toy_mesh import Answer, collect, read_one, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPT = (5, 6, 7)


async def test_degraded_replica_continues_with_fewer_stages_and_is_completed_again(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, pp=3, replan_seconds=0.05) as mesh:
        call = mesh.infer(token_request(PROMPT, max_tokens=400))
        answers: dict[int, Answer] = {}
        await read_one(call, answers)
        await mesh.workers[0].kill()
        state = await mesh.until(lambda state: state.ready and len(state.replicas[0].stages) == 2)
        assert [stage.num_layers for stage in state.replicas[0].stages] == [2, 2]
        await mesh.add_worker("back")
        state = await mesh.until(lambda state: state.ready and len(state.replicas[0].stages) == 3)
        await collect(call, answers)
        assert answers[0].tokens == toy_answer(PROMPT, 400)


async def test_replica_keeps_its_plan_if_a_worker_joins_before_replan_seconds(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, replan_seconds=60.0) as mesh:
        await mesh.until_ready()
        await mesh.workers[1].kill()
        await mesh.until(lambda state: not state.ready)
        await mesh.add_worker("back")
        state = await mesh.until_ready()
    assert len(state.replicas[0].stages) == 2


async def test_replica_is_not_degraded_before_the_first_service(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=1, replan_seconds=0.01) as mesh:
        for _ in range(50):
            state = await mesh.until(lambda state: len(state.workers) == 1)
    assert state.phase == "waiting for workers: 1 of 2"
