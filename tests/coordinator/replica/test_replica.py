"""The life cycle of a replica: epochs that end and start again, and final failures."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from coordinator.replica.replica import Replica
from protos import stage_pb2
from runtime.errors import CheckpointError, WorkerDiedError
from runtime.rpc.channels import error_from_rpc
from tests.coordinator.fake_worker import fake_worker
from tests.coordinator.toy_mesh import Answer, collect, read_one, token_request, toy_mesh
from tests.coordinator.toy_model import VOCAB_SIZE, toy_answer

PROMPT = (5, 6, 7)


async def test_replica_stage_fails_during_generation_tokens_are_the_same(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, behaviour={"fail_at_step": 30}) as mesh:
        mesh.workers[1].stage.behaviour.fail_at_step = None
        calls = [collect(mesh.infer(token_request((n, n), max_tokens=40))) for n in range(5)]
        answers = await asyncio.gather(*calls)
        state = await mesh.until_ready()
    assert [a[0].tokens for a in answers] == [toy_answer((n, n), 40) for n in range(5)]
    assert state.replicas[0].epoch.counter == 2
    assert [worker.stage.num_loads for worker in mesh.workers] == [1, 1]


async def test_replica_worker_killed_and_replaced_continues_the_answer(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        call = mesh.infer(token_request(PROMPT, max_tokens=200))
        answers: dict[int, Answer] = {}
        await read_one(call, answers)
        await mesh.workers[0].kill()
        assert len(answers[0].tokens) < 200
        await mesh.add_worker("replacement")
        await collect(call, answers)
        assert answers[0].tokens == toy_answer(PROMPT, 200)
        state = await mesh.until_ready()
    assert mesh.workers[1].stage.num_loads == 1
    assert mesh.workers[2].stage.assignment.stage == 0
    assert [list(stage.worker_ids) for stage in state.replicas[0].stages] == [
        ["replacement"],
        ["w1"],
    ]


def _out_of_vocabulary(result: stage_pb2.StepResult) -> None:
    result.sampled[0].token_id = VOCAB_SIZE


def _not_a_number(result: stage_pb2.StepResult) -> None:
    result.sampled[0].logprob = float("nan")


def _most_likely_are_not_numbers(result: stage_pb2.StepResult) -> None:
    result.sampled[0].top_ids.append(1)
    result.sampled[0].top_logprobs.append(float("nan"))


def _another_slot(result: stage_pb2.StepResult) -> None:
    result.sampled[0].slot += 1


def _top_lists_differ(result: stage_pb2.StepResult) -> None:
    result.sampled[0].top_ids.append(1)


def _step_left_out(result: stage_pb2.StepResult) -> None:
    result.step += 1


@pytest.mark.parametrize(
    "corrupt",
    [
        _out_of_vocabulary,
        _not_a_number,
        _most_likely_are_not_numbers,
        _another_slot,
        _top_lists_differ,
        _step_left_out,
    ],
)
async def test_replica_invalid_result_ends_the_epoch_not_the_request(
    toy_folder: Path, corrupt: Callable[[stage_pb2.StepResult], None]
) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        mesh.workers[1].stage.behaviour.corrupt = corrupt
        answer = (await collect(mesh.infer(token_request(PROMPT))))[0]
        assert answer.tokens == toy_answer(PROMPT, 8)
        assert (await mesh.until_ready()).replicas[0].epoch.counter == 2


async def test_replica_coordinator_restarts_workers_keep_their_weights(toy_folder: Path) -> None:
    async with fake_worker("a") as first, fake_worker("b") as second:
        for _ in range(2):
            async with toy_mesh(toy_folder, num_workers=0) as mesh:
                await first.join_mesh(mesh.mesh)
                await second.join_mesh(mesh.mesh)
                await mesh.until_ready()
        assert (first.stage.num_loads, second.stage.num_loads) == (1, 1)


async def test_replica_spare_worker_takes_over_at_once(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=3) as mesh:
        call = mesh.infer(token_request(PROMPT, max_tokens=200))
        answers: dict[int, Answer] = {}
        await read_one(call, answers)
        assert mesh.workers[2].stage.num_loads == 0
        await mesh.workers[1].kill()
        await collect(call, answers)
        assert answers[0].tokens == toy_answer(PROMPT, 200)
    assert [worker.stage.num_loads for worker in mesh.workers] == [1, 1, 1]


async def test_replica_canary_differs_is_never_served(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, behaviour={"skew_logprobs": 0.5}) as mesh:
        waiting = asyncio.create_task(collect(mesh.infer(token_request(PROMPT))))
        state = await mesh.until(lambda state: bool(state.failure))
        assert "canary" in state.failure
        assert not state.ready
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waiting
        assert error_from_rpc(caught.value)[0] == "not_ready"
        with pytest.raises(grpc.aio.AioRpcError, match="canary"):
            await collect(mesh.infer(token_request(PROMPT)))


async def test_replica_worker_refuses_the_checkpoint_reports_the_reason(toy_folder: Path) -> None:
    error = CheckpointError(folder="/models/toy", problem="model.norm.weight is missing")
    async with toy_mesh(toy_folder, behaviour={"load_error": error}) as mesh:
        state = await mesh.until(lambda state: bool(state.failure))
    assert "model.norm.weight is missing" in state.failure
    assert mesh.workers[0].address in state.failure or mesh.workers[1].address in state.failure


async def test_replica_requested_length_exceeds_the_cache_names_the_numbers(
    toy_folder: Path,
) -> None:
    behaviour = {"num_kv_blocks": 8}
    async with toy_mesh(toy_folder, behaviour=behaviour, max_model_len=256) as mesh:
        state = await mesh.until(lambda state: bool(state.failure))
    assert "16 KV blocks" in state.failure
    assert "8" in state.failure


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"layers": (3, 3)}, "layers 3,3"),
        ({"pp": 9}, "9 stages"),
        ({"max_model_len": 100_000}, "--max-model-len"),
    ],
)
async def test_replica_plan_does_not_fit_the_model_fails_before_loading(
    toy_folder: Path, options: dict[str, Any], named: str
) -> None:
    async with toy_mesh(toy_folder, num_workers=0, **options) as mesh:
        state = await mesh.until(lambda state: bool(state.failure))
    assert named in state.failure


async def test_replica_canary_reference_is_recorded_once_per_model(toy_folder: Path) -> None:
    counts = []
    for _ in range(2):
        async with toy_mesh(toy_folder) as mesh:
            await mesh.until_ready()
        counts.append(sum(worker.stage.num_canaries for worker in mesh.workers))
    assert counts == [1, 0]


async def test_replica_missing_results_end_the_epoch(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, step_seconds=1.0) as mesh:
        await mesh.until_ready()
        behaviour = mesh.workers[0].stage.behaviour
        behaviour.running.clear()
        reading = asyncio.create_task(collect(mesh.infer(token_request(PROMPT))))
        await mesh.until(lambda state: "no result within" in state.phase)
        behaviour.running.set()
        assert (await reading)[0].tokens == toy_answer(PROMPT, 8)


async def test_replica_missing_credits_end_the_epoch(toy_folder: Path) -> None:
    behaviour = {"withhold_credits": True}
    async with toy_mesh(
        toy_folder, behaviour=behaviour, step_seconds=1.0, num_steps_in_flight=2
    ) as mesh:
        await mesh.until(lambda state: "no credit within" in state.phase)


async def test_replica_cancelled_while_its_epoch_fails_ends(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = asyncio.Event()

    async def fail_when_cancelled(_: Replica, __: object) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            error = WorkerDiedError(worker="w0", detail="gone")
            raise ExceptionGroup("as a task group does", [error]) from None

    monkeypatch.setattr(Replica, "_run_epoch", fail_when_cancelled)
    async with toy_mesh(toy_folder) as mesh:
        await entered.wait()
        mesh.stop.set()
        async with asyncio.timeout(10):
            await asyncio.shield(mesh.serving)


async def test_replica_worker_whose_stage_does_not_answer_is_replaced(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh, fake_worker("ghost") as ghost:
        async with fake_worker("ghost") as away:
            address = away.address
            await ghost.join_mesh(mesh.mesh, address=address)
        for number in range(2):
            await mesh.add_worker(f"w{number}")
        state = await mesh.until_ready()
        assert [info.hello.worker_id for info in state.workers] == ["w0", "w1"]


async def test_replica_serving_reports_stages_and_their_sums(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, layers=(1, 3)) as mesh:
        await mesh.until_ready()
        await collect(mesh.infer(token_request(PROMPT)))
        state = await mesh.until_idle()
    replica = state.replicas[0]
    assert [(stage.first_layer, stage.num_layers) for stage in replica.stages] == [(0, 1), (1, 3)]
    for stage in replica.stages:
        assert stage.num_steps >= 8
        assert stage.compute_seconds == pytest.approx(0.3 * stage.num_steps)
        assert (stage.load_done_bytes, stage.load_total_bytes) == (100, 100)
    assert [info.hello.worker_id for info in state.workers] == ["w0", "w1"]
    assert state.max_model_len == 512
