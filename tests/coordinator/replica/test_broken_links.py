"""Two live workers that do not reach each other: spares, another order, or fewer stages help."""

from functools import partial
from pathlib import Path

from protos import mesh_pb2
from tests.coordinator.replica.test_faulty_workers import outcome, rejoining, used
from tests.coordinator.toy_mesh import (
    Answer,
    ToyMesh,
    collect,
    read_one,
    token_request,
    toy_mesh,
)
from tests.coordinator.toy_model import toy_answer

PROMPT = (5, 6, 7)


def cut(mesh: ToyMesh, sender: int, receiver: int) -> None:
    """Makes `sender` no longer reach `receiver`."""
    mesh.workers[sender].stage.behaviour.unreachable.add(mesh.workers[receiver].address)


def is_reported(words: str, state: mesh_pb2.GetStateResponse) -> bool:
    """Whether the phase contains `words`; the mesh must not have failed."""
    assert not state.failure
    return words in state.phase


async def answer_over_a_cut(
    mesh: ToyMesh, *cuts: tuple[int, int]
) -> tuple[list[int], mesh_pb2.GetStateResponse]:
    """Cuts links during an answer; returns its tokens and the state of the mesh at the end."""
    call = mesh.infer(token_request(PROMPT, max_tokens=300))
    answers: dict[int, Answer] = {}
    await read_one(call, answers)
    for sender, receiver in cuts:
        cut(mesh, sender, receiver)
    mesh.workers[0].stage.behaviour.fail_at_step = 0
    async with rejoining(mesh):
        await collect(call, answers)
        return answers[0].tokens, await mesh.until_ready()


async def test_link_cut_one_way_without_a_spare_reorders_the_workers(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder) as mesh:
        tokens, state = await answer_over_a_cut(mesh, (0, 1))
    assert tokens == toy_answer(PROMPT, 300)
    assert used(state) == ["w1", "w0"]


async def test_link_cut_both_ways_without_a_spare_continues_with_fewer_stages(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, replan_seconds=600.0) as mesh:
        tokens, state = await answer_over_a_cut(mesh, (0, 1), (1, 0))
        names = [worker.address for worker in mesh.workers]
        assert tokens == toy_answer(PROMPT, 300)
        assert len(used(state)) == 1
        assert state.phase.startswith("serving with 1 of 2 stages (after: worker ")
        assert all(name in state.phase for name in names)
        # The plan stays while the link counts as broken.
        for _ in range(50):
            assert len(used(await mesh.state())) == 1
        # A restarted worker may reach what the former process did not.
        await mesh.workers[1].kill()
        await mesh.add_worker("anew")
        state = await mesh.until(lambda state: state.ready and len(used(state)) == 2)
    assert state.phase == "serving"


async def test_links_cut_in_a_chain_of_three_are_avoided(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, pp=3) as mesh:
        tokens, state = await answer_over_a_cut(mesh, (0, 1), (1, 0), (1, 2))
    assert tokens == toy_answer(PROMPT, 300)
    assert len(used(state)) == 3
    assert not {("w0", "w1"), ("w1", "w0"), ("w1", "w2")} & set(
        zip(used(state), used(state)[1:], strict=False)
    )


async def test_link_cut_without_an_alternative_is_reported_and_retried_until_it_recovers(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, num_workers=0, replan_seconds=0.01) as mesh:
        # Weights are 200 bytes in all, of which one such device holds no more than half.
        small = mesh_pb2.Device(kind="cuda", memory_bytes=130)
        for number in range(2):
            worker = await mesh.add_worker(f"w{number}")
            await worker.join_mesh(mesh.mesh, device=small)
        call = mesh.infer(token_request(PROMPT, max_tokens=300))
        answers: dict[int, Answer] = {}
        await read_one(call, answers)
        first, second = mesh.workers
        cut(mesh, 0, 1)
        cut(mesh, 1, 0)
        first.stage.behaviour.fail_at_step = 0
        async with rejoining(mesh, device=small), mesh.http() as http:
            for sender, receiver in ((first, second), (second, first)):
                expected = f"worker {sender.address} does not reach worker {receiver.address}"
                await mesh.until(partial(is_reported, expected))
            ready = await http.get("/ready")
            assert ready.status_code == 503
            assert f"worker {second.address} does not reach worker {first.address}" in ready.text
            for worker in mesh.workers:
                worker.stage.behaviour.unreachable.clear()
            await collect(call, answers)
    assert answers[0].tokens == toy_answer(PROMPT, 300)


async def test_start_over_a_link_cut_one_way_reorders_the_workers(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        first = await mesh.add_worker("w0")
        first.stage.behaviour.loading.clear()
        await mesh.add_worker("w1")
        cut(mesh, 0, 1)
        first.stage.behaviour.loading.set()
        async with rejoining(mesh):
            state = await outcome(mesh)
    assert (used(state), state.failure) == (["w1", "w0"], "")
