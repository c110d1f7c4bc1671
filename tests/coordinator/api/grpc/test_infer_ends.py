"""Requests that end early or are refused: cancellation, deadlines, bad input, a full queue."""

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest

from coordinator.engine import request_router
from protos import inference_pb2
from runtime.rpc.channels import error_from_rpc
from tests.coordinator.toy_mesh import ToyMesh, collect, token_request, toy_mesh
from tests.coordinator.toy_model import MAX_LEN, VOCAB_SIZE, toy_answer

PROMPT = (5, 6, 7)
Request = inference_pb2.InferRequest


async def refusal(mesh: ToyMesh, request: Request) -> tuple[str, grpc.StatusCode, str]:
    """The code, status and message of a request that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(mesh.infer(request))
    code, message = error_from_rpc(caught.value)
    return code, caught.value.code(), message


async def test_infer_bad_requests_get_one_clear_error_each(toy_folder: Path) -> None:
    chat = inference_pb2.Prompt(chat=inference_pb2.Chat())
    text = inference_pb2.Prompt(text="")
    unknown = token_request(PROMPT)
    unknown.model = "gpt-9"
    stop = token_request(PROMPT)
    stop.stop_token_ids.append(VOCAB_SIZE)
    long_id = token_request(PROMPT)
    long_id.request_id = "x" * 200
    cases = [
        (Request(), "invalid_request", "prompts"),
        (token_request(()), "empty_prompt", "prompt 0"),
        (Request(prompts=[text]), "empty_prompt", "prompt 0"),
        (Request(prompts=[chat]), "empty_prompt", "prompt 0"),
        (Request(prompts=[inference_pb2.Prompt()]), "empty_prompt", "prompt 0"),
        (token_request(PROMPT, (3, VOCAB_SIZE)), "token_out_of_vocabulary", str(VOCAB_SIZE)),
        (stop, "token_out_of_vocabulary", str(VOCAB_SIZE)),
        (token_request((1,) * MAX_LEN), "prompt_too_long", str(MAX_LEN)),
        (unknown, "unknown_model", "'toy'"),
        (long_id, "invalid_request", "request_id"),
        (token_request(PROMPT, temperature=float("nan")), "invalid_request", "temperature"),
        (token_request(PROMPT, temperature=-1), "invalid_request", "temperature"),
        (token_request(PROMPT, temperature=float("inf")), "invalid_request", "temperature"),
        (token_request(PROMPT, top_p=0), "invalid_request", "top_p"),
        (token_request(PROMPT, top_p=1.5), "invalid_request", "top_p"),
        (token_request(PROMPT, top_p=float("nan")), "invalid_request", "top_p"),
        (token_request(PROMPT, min_p=1.5), "invalid_request", "min_p"),
        (token_request(PROMPT, num_logprobs=VOCAB_SIZE + 1), "invalid_request", "num_logprobs"),
    ]
    async with toy_mesh(toy_folder) as mesh:
        for request, expected_code, named in cases:
            code, status, message = await refusal(mesh, request)
            not_found = expected_code == "unknown_model"
            wanted = grpc.StatusCode.NOT_FOUND if not_found else grpc.StatusCode.INVALID_ARGUMENT
            assert (code, status) == (expected_code, wanted)
            assert named in message
        assert (await collect(mesh.infer(token_request(PROMPT))))[0].tokens == toy_answer(PROMPT, 8)


async def test_infer_too_many_logprobs_at_once_are_refused_and_the_quota_is_released(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_router, "MAX_LOGPROBS_PER_STEP", 2 * VOCAB_SIZE)
    whole = token_request(PROMPT, max_tokens=500, num_logprobs=VOCAB_SIZE)
    async with toy_mesh(toy_folder) as mesh:
        calls = [mesh.infer(whole) for _ in range(2)]
        for call in calls:
            await call.read()
        code, status, message = await refusal(mesh, whole)
        assert (code, status) == ("too_many_logprobs", grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert str(2 * VOCAB_SIZE) in message
        assert (await collect(mesh.infer(token_request(PROMPT))))[0].tokens == toy_answer(PROMPT, 8)
        calls[0].cancel()
        await mesh.until(lambda state: state.num_running == 1)
        more = token_request(PROMPT, max_tokens=2, num_logprobs=VOCAB_SIZE)
        assert (await collect(mesh.infer(more)))[0].tokens == toy_answer(PROMPT, 2)
        calls[1].cancel()


async def test_infer_client_disconnects_while_running_releases_everything(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        call = mesh.infer(token_request(PROMPT, (8, 9), max_tokens=500))
        await call.read()
        call.cancel()
        state = await mesh.until_idle()
        assert state.ready


async def test_infer_deadline_passes_while_running_ends_it(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        mesh.workers[1].stage.behaviour.running.clear()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(mesh.infer(token_request(PROMPT), timeout=0.2))
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        mesh.workers[1].stage.behaviour.running.set()
        await mesh.until_idle()


async def test_infer_before_workers_join_waits_for_them(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        waiting = asyncio.create_task(collect(mesh.infer(token_request(PROMPT))))
        state = await mesh.until(lambda state: state.num_waiting == 1)
        assert (state.ready, state.phase) == (False, "waiting for workers: 0 of 2")
        await mesh.add_worker("late0")
        await mesh.add_worker("late1")
        assert (await waiting)[0].tokens == toy_answer(PROMPT, 8)


async def test_infer_deadline_in_the_queue_leaves_the_queue(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0, max_waiting=1) as mesh:
        await mesh.until(lambda state: state.phase.startswith("waiting"))
        first = asyncio.create_task(collect(mesh.infer(token_request(PROMPT), timeout=3.0)))
        await mesh.until(lambda state: state.num_waiting == 1)
        code, status, message = await refusal(mesh, token_request(PROMPT))
        assert (code, status) == ("queue_full", grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert "limit 1" in message
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await first
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await mesh.until(lambda state: state.num_waiting == 0)


async def test_infer_prompt_longer_than_the_cache_is_refused_when_its_size_is_known(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, num_workers=0, behaviour={"num_kv_blocks": 4}) as mesh:
        early = asyncio.create_task(refusal(mesh, token_request((1,) * 100)))
        await mesh.until(lambda state: state.num_waiting == 1)
        await mesh.add_worker("late0", num_kv_blocks=4)
        await mesh.add_worker("late1", num_kv_blocks=9)
        assert (await early)[0] == "prompt_too_long"
        assert (await mesh.until_ready()).max_model_len == 64
        code, _, message = await refusal(mesh, token_request((1,) * 100))
        assert code == "prompt_too_long"
        assert "100 tokens" in message
        assert "63 fit" in message


async def counted(mesh: ToyMesh, reason: str) -> float:
    """Prompts that ended for `reason`, as the metrics page reports."""
    async with mesh.http() as client:
        lines = (await client.get("/metrics")).text.splitlines()
    name = f'stagemesh_requests_total{{api="grpc",reason="{reason}"}} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


async def test_infer_without_tokens_is_counted_as_a_request(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await collect(mesh.infer(token_request(PROMPT, (8, 9), max_tokens=0)))
        assert await counted(mesh, "length") == 2


async def test_infer_deadline_that_passes_is_counted_as_one(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        await mesh.until(lambda state: state.phase.startswith("waiting"))
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError):
                await collect(mesh.infer(token_request(PROMPT), timeout=0.5))
        await mesh.until(lambda state: state.num_waiting == 0)
        assert await counted(mesh, "deadline_exceeded") == 3
        assert await counted(mesh, "request_cancelled") == 0
