"""Which worker is replaced after a failed attempt, and when the mesh gives up."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from structlog.testing import capture_logs

from coordinator.stage_client import stage_client
from protos import mesh_pb2
from runtime.errors import CheckpointError, StagemeshError
from tests.coordinator.toy_mesh import Answer, ToyMesh, collect, read_one, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPT = (5, 6, 7)
REFUSES = {"load_error": CheckpointError(folder="/models/toy", problem="it ends too early")}
FAILS = {"load_error": StagemeshError()}
MISCOMPUTES = {"skew_logprobs": 0.5}


async def start_with(mesh: ToyMesh, behaviours: Sequence[dict[str, Any]]) -> None:
    """Adds a worker for each behaviour; none loads before all have joined."""
    loading = asyncio.Event()
    for number, behaviour in enumerate(behaviours):
        await mesh.add_worker(f"w{number}", loading=loading, **behaviour)
    loading.set()


async def outcome(mesh: ToyMesh) -> mesh_pb2.GetStateResponse:
    """The state once the mesh serves or has failed."""
    return await mesh.until(lambda state: state.ready or bool(state.failure))


def used(state: mesh_pb2.GetStateResponse) -> list[str]:
    """The ids of the workers, in the order of stages."""
    return [id for stage in state.replicas[0].stages for id in stage.worker_ids]


@asynccontextmanager
async def rejoining(mesh: ToyMesh, **hello: Any) -> AsyncIterator[None]:
    """Evicted workers join again with the same hello, as real ones do."""

    async def rejoin_forever() -> None:
        while True:
            there = {worker.hello.worker_id for worker in (await mesh.state()).workers}
            for worker in mesh.workers:
                if worker.is_alive and worker.stage.worker_id not in there:
                    # It may be evicted again before its welcome.
                    with suppress(grpc.aio.AioRpcError, AssertionError):
                        await worker.join_mesh(mesh.mesh, **hello)

    task = asyncio.create_task(rejoin_forever())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    ("behaviours", "broken"),
    [
        ((REFUSES, {}, {}), 0),
        (({}, REFUSES, {}), 1),
        (({}, FAILS, {}), 1),
        (({}, MISCOMPUTES, {}), 1),
        ((REFUSES, {}, REFUSES, {}), 0),
    ],
    ids=["refuses", "last-refuses", "fails", "miscomputes", "two-refuse"],
)
async def test_start_with_a_faulty_worker_continues_with_a_spare(
    toy_folder: Path, behaviours: Sequence[dict[str, Any]], broken: int
) -> None:
    """Case 16 (TGI#2593): one faulty worker does not prevent service."""
    with capture_logs() as logs:
        async with toy_mesh(toy_folder, num_workers=0) as mesh:
            await start_with(mesh, behaviours)
            state = await outcome(mesh)
            assert state.failure == ""
            assert f"w{broken}" not in used(state)
            answer = (await collect(mesh.infer(token_request(PROMPT))))[0]
            assert answer.tokens == toy_answer(PROMPT, 8)
    if behaviours[broken] is not MISCOMPUTES:  # a wrong canary names no worker
        ends = [log["cause"] for log in logs if log["event"] == "epoch_ended"]
        assert f"evicted: {mesh.workers[broken].address}" in ends[0]


@pytest.mark.parametrize(
    "behaviour", [REFUSES, MISCOMPUTES, FAILS], ids=["refuse", "miscompute", "fail"]
)
@pytest.mark.parametrize("num_workers", [2, 3, 5])
async def test_start_with_only_faulty_workers_gives_up_with_the_reason(
    toy_folder: Path, behaviour: dict[str, Any], num_workers: int
) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        await start_with(mesh, [behaviour] * num_workers)
        async with rejoining(mesh):
            state = await outcome(mesh)
        assert not state.ready
        assert any(word in state.failure for word in ("ends too early", "canary", "internal error"))


async def test_start_with_a_faulty_worker_waits_for_workers_on_their_way(
    toy_folder: Path,
) -> None:
    """The workers of a restarted coordinator join one after the other."""
    async with toy_mesh(toy_folder, num_workers=0, settle_seconds=60.0) as mesh:
        await start_with(mesh, ({}, REFUSES))
        waiting = asyncio.create_task(outcome(mesh))
        for _ in range(50):  # each call gives the refusal time to arrive
            assert not (await mesh.state()).failure
        await mesh.add_worker("late")
        state = await waiting
        assert used(state) == ["w0", "late"]


async def test_worker_that_answers_no_call_is_evicted_and_replaced_by_a_spare(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 9 (vllm#45414): the worker's heartbeats arrive, but calls do not reach it."""
    monkeypatch.setattr(stage_client, "STATUS_SECONDS", 2.0)
    async with toy_mesh(toy_folder, num_workers=3) as mesh:
        call = mesh.infer(token_request(PROMPT, max_tokens=300))
        answers: dict[int, Answer] = {}
        await read_one(call, answers)
        silent = mesh.workers[1].stage.behaviour
        silent.answering.clear()
        silent.fail_at_step = 0
        await collect(call, answers)
        assert answers[0].tokens == toy_answer(PROMPT, 300)
        state = await mesh.until_ready()
    assert used(state) == ["w0", "w2"]
    assert {worker.hello.worker_id for worker in state.workers} == {"w0", "w2"}


async def test_attempt_that_fails_after_serving_is_repeated_with_a_spare(
    toy_folder: Path,
) -> None:
    """A stage that fails at the canary, such as one that computes NaN, names no worker."""
    async with toy_mesh(toy_folder, num_workers=3) as mesh:
        await mesh.until_ready()
        broken = mesh.workers[1].stage.behaviour
        broken.poison = (7,)  # the canary's first token
        broken.fail_at_step = 0
        answer = (await collect(mesh.infer(token_request(PROMPT, max_tokens=20))))[0]
        assert answer.tokens == toy_answer(PROMPT, 20)
        assert used(await mesh.until_ready()) == ["w0", "w2"]


async def test_worker_that_has_served_and_fails_at_every_canary_evicts_no_spare(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, num_workers=4) as mesh:
        await mesh.until_ready()
        mesh.workers[1].stage.behaviour.poison = (7,)  # the canary's first token
        await mesh.workers[0].kill()
        answer = (await collect(mesh.infer(token_request(PROMPT, max_tokens=20))))[0]
        assert answer.tokens == toy_answer(PROMPT, 20)
        assert set(used(await mesh.until_ready())) == {"w2", "w3"}


@pytest.mark.parametrize("unreached", [(1,), (1, 2)], ids=["one-peer", "no-peer"])
async def test_worker_that_does_not_reach_the_next_stage_is_replaced_by_a_spare(
    toy_folder: Path, unreached: Sequence[int]
) -> None:
    async with toy_mesh(toy_folder, num_workers=3) as mesh:
        await mesh.until_ready()
        lonely = mesh.workers[0].stage.behaviour
        lonely.unreachable = {mesh.workers[number].address for number in unreached}
        lonely.fail_at_step = 0
        answer = (await collect(mesh.infer(token_request(PROMPT, max_tokens=20))))[0]
        assert answer.tokens == toy_answer(PROMPT, 20)
        state = await mesh.until_ready()
        assert used(state) == (["w0", "w2"] if len(unreached) == 1 else ["w2", "w1"])


async def test_start_with_workers_that_do_not_reach_each_other_names_both(
    toy_folder: Path,
) -> None:
    """Case 27 (vllm#27823, #8447): a start on the wrong interface fails with a message."""
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        loading = asyncio.Event()
        first, second = [await mesh.add_worker(f"w{n}", loading=loading) for n in range(2)]
        first.stage.behaviour.unreachable = {second.address}
        second.stage.behaviour.unreachable = {first.address}
        loading.set()
        async with rejoining(mesh):
            state = await outcome(mesh)
    assert f"worker {first.address} does not reach worker {second.address}: " in state.failure
    assert "--advertise" in state.failure
