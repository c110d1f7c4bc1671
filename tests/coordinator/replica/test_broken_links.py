"""Two live workers that do not reach each other: others take over, in another order, or fewer."""

from collections.abc import Sequence
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.membership.worker_record import WorkerIdentity, WorkerRecord
from coordinator.options import CoordinatorOptions
from coordinator.planning.replica_layout import plan_replica
from coordinator.planning.worker_assignment import assign_workers, links_of
from protos import mesh_pb2
from runtime.model_config.model_config import load_model_config
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
    """From now on the one worker does not reach the other."""
    mesh.workers[sender].stage.behaviour.unreachable.add(mesh.workers[receiver].address)


def is_told(words: str, state: mesh_pb2.GetStateResponse) -> bool:
    """The mesh says so, and has not given up."""
    assert not state.failure
    return words in state.phase


async def answer_over_a_cut(
    mesh: ToyMesh, *cuts: tuple[int, int]
) -> tuple[list[int], mesh_pb2.GetStateResponse]:
    """Cuts links in the middle of an answer; what it says, and the mesh that it ended on."""
    call = mesh.infer(token_request(PROMPT, max_tokens=300))
    answers: dict[int, Answer] = {}
    await read_one(call, answers)
    for sender, receiver in cuts:
        cut(mesh, sender, receiver)
    mesh.workers[0].stage.behaviour.fail_at_step = 0
    async with rejoining(mesh):
        await collect(call, answers)
        return answers[0].tokens, await mesh.until_ready()


async def test_link_cut_one_way_without_a_spare_the_workers_change_places(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder) as mesh:
        tokens, state = await answer_over_a_cut(mesh, (0, 1))
    assert tokens == toy_answer(PROMPT, 300)
    assert used(state) == ["w1", "w0"]


async def test_link_cut_both_ways_without_a_spare_goes_on_with_fewer_stages(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, replan_seconds=600.0) as mesh:
        tokens, state = await answer_over_a_cut(mesh, (0, 1), (1, 0))
        names = [worker.address for worker in mesh.workers]
        assert tokens == toy_answer(PROMPT, 300)
        assert len(used(state)) == 1
        assert state.phase.startswith("serving with 1 of 2 stages (after: worker ")
        assert all(name in state.phase for name in names)
        # It stays so while nothing says that the link is whole again.
        for _ in range(50):
            assert len(used(await mesh.state())) == 1
        # A worker that is started anew may reach what the old one did not.
        await mesh.workers[1].kill()
        await mesh.add_worker("anew")
        state = await mesh.until(lambda state: state.ready and len(used(state)) == 2)
    assert state.phase == "serving"


async def test_link_cut_in_a_chain_of_three_is_gone_around(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, pp=3) as mesh:
        tokens, state = await answer_over_a_cut(mesh, (0, 1), (1, 0), (1, 2))
    assert tokens == toy_answer(PROMPT, 300)
    assert len(used(state)) == 3
    assert not {("w0", "w1"), ("w1", "w0"), ("w1", "w2")} & set(
        zip(used(state), used(state)[1:], strict=False)
    )


async def test_link_cut_where_nothing_else_fits_names_both_and_is_tried_until_it_is_whole(
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
                told = f"worker {sender.address} does not reach worker {receiver.address}"
                await mesh.until(partial(is_told, told))
            ready = await http.get("/ready")
            assert ready.status_code == 503
            assert f"worker {second.address} does not reach worker {first.address}" in ready.text
            for worker in mesh.workers:
                worker.stage.behaviour.unreachable.clear()
            await collect(call, answers)
    assert answers[0].tokens == toy_answer(PROMPT, 300)


async def test_start_over_a_link_cut_one_way_the_workers_change_places(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        first = await mesh.add_worker("w0")
        first.stage.behaviour.loading.clear()
        await mesh.add_worker("w1")
        cut(mesh, 0, 1)
        first.stage.behaviour.loading.set()
        async with rejoining(mesh):
            state = await outcome(mesh)
    assert (used(state), state.failure) == (["w1", "w0"], "")


LINKS = [(a, b) for a in "abcd" for b in "abcd" if a != b]


@given(
    num_workers=st.integers(3, 4),
    broken=st.frozensets(st.sampled_from(LINKS)),
    held=st.permutations("abcd"),
)
def test_place_over_broken_links_finds_a_way_around_whenever_there_is_one(
    toy_folder: Path, num_workers: int, broken: frozenset[tuple[str, str]], held: Sequence[str]
) -> None:
    options = CoordinatorOptions(model="smollm2", pp=3)
    plan = plan_replica(options, load_model_config(toy_folder), "f00", 0)
    workers = [
        WorkerRecord(WorkerIdentity(1, "b", name, "here", f"{name}:1", "cpu", "", 0, 1))
        for name in "abcd"[:num_workers]
    ]
    for part, name in zip(plan, held, strict=False):
        next((each for each in workers if each.identity.worker_id == name), workers[0]).held = part
    ways = [way for way in permutations(workers, 3) if not broken & set(links_of(plan, way))]
    placed = assign_workers(plan, workers, broken)
    assert (placed in ways) if ways else placed is None


def test_place_ranks_of_a_stage_go_around_a_broken_link_together(toy_folder: Path) -> None:
    options = CoordinatorOptions(model="smollm2", pp=2, tp=(2,))
    plan = plan_replica(options, load_model_config(toy_folder), "f00", 0)
    workers = [
        WorkerRecord(WorkerIdentity(1, "b", f"{node}{n}", node, f"{node}{n}:1", "cpu", "", 0, 1))
        for node in "xyz"
        for n in range(2)
    ]
    placed = assign_workers(plan, workers, frozenset({("x1", "y1")}))
    assert placed is not None
    assert [worker.identity.node for worker in placed] == ["x", "x", "z", "z"]


@pytest.mark.parametrize("cut_off", ["x0", "x1", "x2"])
def test_place_rank_that_does_not_reach_the_next_stage_gives_way_to_a_spare_of_its_host(
    toy_folder: Path, cut_off: str
) -> None:
    options = CoordinatorOptions(model="smollm2", pp=2, tp=(2,))
    plan = plan_replica(options, load_model_config(toy_folder), "f00", 0)
    workers = [
        WorkerRecord(WorkerIdentity(1, "b", name, name[0], f"{name}:1", "cpu", "", 0, 1))
        for name in ("x0", "x1", "x2", "y0", "y1")
    ]
    for part, worker in zip(plan, (*workers[:2], *workers[3:]), strict=True):
        worker.held = part
    placed = assign_workers(plan, workers, frozenset({(cut_off, "y0"), ("y0", cut_off)}))
    assert placed is not None
    names = {worker.identity.worker_id for worker in placed}
    assert names == {"x0", "x1", "x2", "y0", "y1"} - {cut_off}
