"""Stop texts, several choices and minimum lengths over gRPC, through a whole coordinator."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from protos import inference_pb2
from runtime.rpc.channels import error_from_rpc
from tests.coordinator.toy_mesh import collect, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPT = (5, 6, 7)
ANSWER = "".join(f" w{token_id}" for token_id in toy_answer(PROMPT, 40))


@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize("length", [1, 2, 5, 9])
async def test_infer_stop_text_of_any_length_ends_the_answer_there(
    length: int, include_stop: bool, toy_folder: Path
) -> None:
    stop = ANSWER[30 : 30 + length]
    begin = ANSWER.index(stop)
    request = token_request(PROMPT, max_tokens=400)
    request.stop.append(stop)
    request.include_stop = include_stop
    async with toy_mesh(toy_folder) as mesh:
        answer = (await collect(mesh.infer(request)))[0]
        state = await mesh.until_idle()
    assert answer.text == ANSWER[: begin + length if include_stop else begin]
    assert answer.last.finish_reason == inference_pb2.FINISH_REASON_STOP
    assert answer.last.usage.completion_tokens == len(answer.tokens)
    assert state.replicas[0].num_steps < 100


async def test_infer_stop_text_does_not_end_the_other_prompts(toy_folder: Path) -> None:
    request = token_request(PROMPT, (8, 9), max_tokens=30)
    request.stop.append(ANSWER[10:25])
    async with toy_mesh(toy_folder) as mesh:
        answers = await collect(mesh.infer(request))
    assert answers[0].text == ANSWER[:10]
    assert answers[1].tokens == toy_answer((8, 9), 30)


async def test_infer_stop_text_after_a_recovery_is_found(
    toy_folder: Path,
) -> None:
    request = token_request(PROMPT, max_tokens=400)
    request.stop.append(ANSWER[60:75])
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        mesh.workers[1].stage.behaviour.fail_at_step = 14
        answer = (await collect(mesh.infer(request)))[0]
        state = await mesh.state()
    assert answer.text == ANSWER[: ANSWER.index(ANSWER[60:75])]
    assert state.replicas[0].epoch.counter == 2


async def test_infer_choices_come_with_their_number(toy_folder: Path) -> None:
    request = token_request(PROMPT, (8, 9), max_tokens=6)
    request.num_choices = 3
    tokens: dict[tuple[int, int], list[int]] = {}
    async with toy_mesh(toy_folder) as mesh:
        async for response in mesh.infer(request):
            key = (response.index, response.choice)
            tokens.setdefault(key, []).extend(token.id for token in response.tokens)
    assert tokens == {
        (index, choice): toy_answer(prompt, 6)
        for index, prompt in enumerate((PROMPT, (8, 9)))
        for choice in range(3)
    }


async def test_infer_with_choices_cancelled_stops_all_of_them(toy_folder: Path) -> None:
    """Case 7: mini-sglang#15, where a request with n > 1 could not be aborted."""
    request = token_request(PROMPT, (8, 9), max_tokens=400)
    request.num_choices = 4
    async with toy_mesh(toy_folder) as mesh:
        call = mesh.infer(request)
        await call.read()
        call.cancel()
        state = await mesh.until_idle()
        assert state.replicas[0].num_steps < 400


def scheduling(**params: Any) -> inference_pb2.InferRequest:
    return inference_pb2.InferRequest(scheduling=inference_pb2.SchedulingParams(**params))


async def test_infer_lowest_priority_number_is_served_first(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, max_sequences=1, num_workers=0) as mesh:
        ended: list[int] = []

        async def ask(number: int, priority: int) -> None:
            request = token_request((number, 5), max_tokens=3)
            request.MergeFrom(scheduling(priority=priority))
            await collect(mesh.infer(request))
            ended.append(number)

        async with asyncio.TaskGroup() as tasks:
            for number, priority in ((1, 2), (2, 0), (3, -2)):
                tasks.create_task(ask(number, priority))
            await mesh.until(lambda state: state.num_waiting == 3)
            await mesh.add_worker("a")
            await mesh.add_worker("b")
    assert ended == [3, 2, 1]


async def test_infer_prompts_of_one_salt_share_their_prefix(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, block_size=4) as mesh:
        await mesh.until_ready()
        for salt in ("", "", "other"):
            request = token_request(tuple(range(20, 30)), max_tokens=2)
            request.MergeFrom(scheduling(cache_salt=salt))
            answers = await collect(mesh.infer(request))
            assert answers[0].tokens == toy_answer(tuple(range(20, 30)), 2)
        async with mesh.http() as http:
            metrics = (await http.get("/metrics")).text
    assert 'stagemesh_prefix_cache_hit_tokens_total{replica="0"} 8.0' in metrics


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (inference_pb2.InferRequest(num_choices=5000), "num_choices"),
        (inference_pb2.InferRequest(stop=[""]), "stop"),
        (inference_pb2.InferRequest(stop=["x"] * 33), "stop"),
        (inference_pb2.InferRequest(include_stop=True), "include_stop"),
        (inference_pb2.InferRequest(min_tokens=9), "min_tokens"),
        (scheduling(priority=-101), "priority"),
        (scheduling(ttft_target_seconds=float("nan")), "ttft_target_seconds"),
        (scheduling(tpot_target_seconds=-1.0), "tpot_target_seconds"),
        (scheduling(cache_salt="x" * 257), "cache_salt"),
        (
            inference_pb2.InferRequest(
                sampling=inference_pb2.SamplingParams(presence_penalty=float("nan"))
            ),
            "presence_penalty",
        ),
        (
            inference_pb2.InferRequest(
                sampling=inference_pb2.SamplingParams(repetition_penalty=0.0)
            ),
            "repetition_penalty",
        ),
        (
            inference_pb2.InferRequest(
                sampling=inference_pb2.SamplingParams(
                    logit_bias=[inference_pb2.LogitBias(token_id=1, bias=float("inf"))]
                )
            ),
            "logit_bias",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_infer_bad_parameter_is_refused_with_its_name(
    change: inference_pb2.InferRequest, field: str, toy_folder: Path
) -> None:
    request = token_request(PROMPT)
    request.MergeFrom(change)
    async with toy_mesh(toy_folder) as mesh:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(30):
                await collect(mesh.infer(request))
        code, message = error_from_rpc(caught.value)
        assert (code, message.partition(":")[0]) == ("invalid_request", field)
