"""A mesh that has served: effects of faulty replacements and of poison requests."""

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from protos import inference_pb2
from runtime.errors import CheckpointError, NotEnoughMemoryError, StagemeshError
from runtime.rpc.channels import error_from_rpc
from tests.coordinator.toy_mesh import Answer, collect, read_one, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPT = (5, 6, 7)
POISON = (77, 77, 77)
NO_MEMORY = NotEnoughMemoryError(needed_bytes=2, available_bytes=1, what="one KV block")


@pytest.mark.parametrize(
    "behaviour",
    [
        {"load_error": CheckpointError(folder="/models/toy", problem="it ends too early")},
        {"load_error": NO_MEMORY},
        {"load_error": StagemeshError()},
        {"skew_logprobs": 0.5},
        {"num_kv_blocks": 8},
    ],
    ids=["refuses", "no-memory", "bug", "wrong", "small"],
)
async def test_replica_faulty_replacement_is_evicted_and_another_one_continues(
    toy_folder: Path, behaviour: dict[str, Any]
) -> None:
    async with toy_mesh(toy_folder, max_model_len=256) as mesh:
        call = mesh.infer(token_request(PROMPT, max_tokens=200))
        answers: dict[int, Answer] = {}
        await read_one(call, answers)
        await mesh.workers[1].kill()
        await mesh.add_worker("bad", **behaviour)
        await mesh.until(lambda state: "1 of 2 (after: " in state.phase and len(state.workers) == 1)
        assert (await mesh.state()).failure == ""
        await mesh.workers[2].kill()
        await mesh.add_worker("good")
        await collect(call, answers)
        assert answers[0].tokens == toy_answer(PROMPT, 200)
        assert mesh.workers[0].stage.num_loads == 1


async def test_replica_worker_that_fails_before_the_first_service_may_join_again(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, num_workers=1) as mesh:
        failing = await mesh.add_worker("failing", load_error=StagemeshError())
        await mesh.until(lambda state: "failed: internal error" in state.phase)
        await mesh.until(lambda state: len(state.workers) == 1)
        failing.stage.behaviour.load_error = None
        await failing.join_mesh(mesh.mesh)
        await mesh.until_ready()


async def test_replica_request_that_ends_epochs_fails_alone_and_others_continue(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        prompts = [(n, n) for n in range(3)]
        others = [collect(mesh.infer(token_request(p, max_tokens=300))) for p in prompts]
        running = [asyncio.create_task(other) for other in others]
        await mesh.until(lambda state: state.num_running == 3)
        mesh.workers[0].stage.behaviour.poison = POISON
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(mesh.infer(token_request(POISON)))
        answers = await asyncio.gather(*running)
        state = await mesh.until_ready()
    assert [answer[0].tokens for answer in answers] == [toy_answer(p, 300) for p in prompts]
    code, message = error_from_rpc(caught.value)
    assert code == "epoch_ended"
    assert message.startswith("the epoch ended (position): the request ran at 3 ends, ")
    assert message.endswith(": failure requested by the test")
    assert message.count("ended") == 1
    assert state.replicas[0].epoch.counter == 4


async def test_replica_context_shrinks_below_an_answer_ends_it_at_its_length(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder) as mesh:
        call = mesh.infer(token_request(PROMPT, max_tokens=450))
        answers: dict[int, Answer] = {}
        while not answers or len(answers[0].tokens) < 40:
            await read_one(call, answers)
        await mesh.workers[1].kill()
        await mesh.add_worker("small", num_kv_blocks=2)
        await collect(call, answers)
        tokens = answers[0].tokens
        assert tokens == toy_answer(PROMPT, 450)[: len(tokens)]
        assert len(tokens) < 450
        assert answers[0].last.finish_reason == inference_pb2.FINISH_REASON_LENGTH


async def test_replica_context_shrinks_below_a_prompt_reports_both_lengths(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder) as mesh:
        call = mesh.infer(token_request(PROMPT * 20, max_tokens=400))
        await call.read()
        await mesh.workers[1].kill()
        await mesh.add_worker("small", num_kv_blocks=2)
        with pytest.raises(grpc.aio.AioRpcError, match="60 tokens, but at most 31 fit"):
            await collect(call)
