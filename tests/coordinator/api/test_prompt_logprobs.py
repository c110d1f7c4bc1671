"""Prompt log-probabilities at both APIs, through a whole coordinator and two fake stages.

Threads: vllm#14239 and #29071 (wrong after preemption; Case 12), vllm#7283 and #6521 (an empty
prompt, or `echo` with `max_tokens` 0, broke the engine; Case 10).
"""

import math
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from protos import inference_pb2, stage_pb2
from runtime.rpc.channels import error_from_rpc
from tests.coordinator.api.http.events import stream_events
from tests.coordinator.toy_mesh import ToyMesh, collect, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer, toy_logprobs, toy_top

PROMPT = tuple((7 * n) % 90 + 1 for n in range(50))
PATH = "/v1/completions"
TEXT = " ".join(f"w{token_id}" for token_id in PROMPT)


def expected_logprobs(prompt: tuple[int, ...]) -> list[float | None]:
    """The model's log-probability of every token of the prompt; None for the first."""
    return [None, *(toy_logprobs(prompt[:n])[prompt[n]] for n in range(1, len(prompt)))]


def approx(values: list[float | None]) -> list[Any]:
    return [None if value is None else pytest.approx(value, abs=1e-4) for value in values]


async def ask(
    mesh: ToyMesh, request: inference_pb2.InferRequest
) -> tuple[list[inference_pb2.PromptToken], list[int], inference_pb2.InferResponse]:
    """The prompt's tokens, the generated ones and the last response; the former come first."""
    prompt: list[inference_pb2.PromptToken] = []
    generated: list[int] = []
    async for response in mesh.infer(request):
        assert not (response.prompt_tokens and generated)
        prompt += response.prompt_tokens
        generated += [token.id for token in response.tokens]
    return prompt, generated, response


def assert_told(prompt: list[inference_pb2.PromptToken]) -> None:
    assert tuple(token.id for token in prompt) == PROMPT
    reported = [token.logprob if token.HasField("logprob") else None for token in prompt]
    assert reported == approx(expected_logprobs(PROMPT))
    for position, token in enumerate(prompt[1:], 1):
        assert [top.id for top in token.top_logprobs] == toy_top(PROMPT[:position], 2)[0]


@pytest.mark.parametrize("max_tokens", [0, 1, 9])
async def test_infer_scores_every_token_of_a_chunked_prompt_once(
    max_tokens: int, toy_folder: Path
) -> None:
    request = token_request(PROMPT, max_tokens=max_tokens, num_prompt_logprobs=2)
    async with toy_mesh(toy_folder, max_step_tokens=16) as mesh:
        prompt, generated, last = await ask(mesh, request)
        [replica] = (await mesh.state()).replicas
    assert_told(prompt)
    assert generated == toy_answer(PROMPT, max_tokens)
    assert replica.num_generated_tokens == max_tokens
    assert last.finish_reason == inference_pb2.FINISH_REASON_LENGTH
    assert last.usage.completion_tokens == max_tokens


async def test_infer_scores_a_prompt_of_one_token(toy_folder: Path) -> None:
    request = token_request((5,), max_tokens=0, num_prompt_logprobs=0)
    async with toy_mesh(toy_folder) as mesh:
        [token], generated, _ = await ask(mesh, request)
    assert (token.id, token.HasField("logprob"), generated) == (5, False, [])


@pytest.mark.parametrize("step", range(4, 12, 2))
async def test_infer_after_a_recovery_scores_every_token_once(step: int, toy_folder: Path) -> None:
    request = token_request(PROMPT, max_tokens=9, num_prompt_logprobs=2)
    async with toy_mesh(toy_folder, max_step_tokens=16) as mesh:
        await mesh.until_ready()
        mesh.workers[1].stage.behaviour.fail_at_step = step
        prompt, generated, _ = await ask(mesh, request)
        state = await mesh.state()
    assert_told(prompt)
    assert generated == toy_answer(PROMPT, 9)
    assert state.replicas[0].epoch.counter == 2


async def test_infer_after_preemption_scores_every_token_once(toy_folder: Path) -> None:
    requests = [
        token_request((first, *PROMPT[1:]), max_tokens=200, num_prompt_logprobs=2)
        for first in (PROMPT[0], 80, 81, 82)
    ]
    async with toy_mesh(
        toy_folder, behaviour={"num_kv_blocks": 24}, max_step_tokens=16, max_model_len=256
    ) as mesh:
        others = [mesh.infer(request) for request in requests[1:]]
        prompt, generated, _ = await ask(mesh, requests[0])
        answers = [(await collect(other))[0] for other in others]
        async with mesh.http() as client:
            metrics = (await client.get("/metrics")).text
    assert_told(prompt)
    assert generated == toy_answer(PROMPT, 200)
    assert [len(answer.tokens) for answer in answers] == [200] * 3
    preemptions = next(
        line for line in metrics.splitlines() if line.startswith("stagemesh_preemptions_total")
    )
    assert float(preemptions.split()[-1]) > 0


async def test_infer_does_not_take_a_scored_prompt_from_the_prefix_cache(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        await collect(mesh.infer(token_request(PROMPT)))
        prompt, _, _ = await ask(mesh, token_request(PROMPT, max_tokens=1, num_prompt_logprobs=2))
    assert_told(prompt)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_prompt_logprobs": 21}, "num_prompt_logprobs"),
        ({"num_choices": 2, "num_prompt_logprobs": 0}, "num_choices"),
    ],
)
async def test_infer_invalid_prompt_logprobs_are_refused(
    change: dict[str, int], field: str, toy_folder: Path
) -> None:
    request = token_request(PROMPT, num_prompt_logprobs=change["num_prompt_logprobs"])
    request.num_choices = change.get("num_choices", 1)
    async with toy_mesh(toy_folder) as mesh:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(mesh.infer(request))
    assert error_from_rpc(caught.value)[1].partition(":")[0] == field


async def test_stage_that_scores_other_positions_ends_the_epoch_and_not_the_request(
    toy_folder: Path,
) -> None:
    def corrupt(result: stage_pb2.StepResult) -> None:
        result.scored[0].position += 1

    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        mesh.workers[1].stage.behaviour.corrupt = corrupt
        prompt, _, _ = await ask(mesh, token_request(PROMPT, max_tokens=1, num_prompt_logprobs=2))
        state = await mesh.state()
    assert_told(prompt)
    assert state.replicas[0].epoch.counter == 2


@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_completion_echo_with_logprobs_has_prompt_and_answer(
    max_tokens: int, toy_folder: Path
) -> None:
    body = {
        "prompt": [[*PROMPT], [8]],
        "max_tokens": max_tokens,
        "temperature": 0,
        "echo": True,
        "logprobs": 2,
    }
    async with toy_mesh(toy_folder, max_step_tokens=16) as mesh, mesh.http() as client:
        answer = (await client.post(PATH, json=body)).json()
    first, second = answer["choices"]
    whole = (*PROMPT, *toy_answer(PROMPT, max_tokens))
    answer_text = "".join(f" w{token_id}" for token_id in whole[len(PROMPT) :])
    assert first["text"] == TEXT + answer_text
    logprobs = first["logprobs"]
    assert logprobs["token_logprobs"] == approx(expected_logprobs(whole))
    assert [len(logprobs[name]) for name in ("tokens", "top_logprobs", "text_offset")] == [
        len(whole)
    ] * 3
    assert logprobs["top_logprobs"][0] is None
    assert second["logprobs"]["token_logprobs"][0] is None
    assert answer["usage"]["completion_tokens"] == 2 * max_tokens


async def test_completion_echo_with_logprobs_streamed_is_the_same(toy_folder: Path) -> None:
    body = {"prompt": TEXT, "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 0}
    async with toy_mesh(toy_folder, max_step_tokens=16) as mesh, mesh.http() as client:
        whole = (await client.post(PATH, json=body)).json()["choices"][0]
        text, reported = "", []
        async for event in stream_events(client, PATH, body):
            [choice] = event["choices"]
            text += choice["text"]
            reported += (choice["logprobs"] or {}).get("token_logprobs", [])
    assert text == whole["text"]
    assert reported == whole["logprobs"]["token_logprobs"]
    assert sum(value for value in reported if value is not None) < -1
    assert not any(value is not None and math.isnan(value) for value in reported)


@pytest.mark.parametrize(
    ("body", "param"),
    [({"logprobs": 21}, "logprobs"), ({"logprobs": 1, "n": 2}, "n"), ({"prompt": ""}, None)],
)
async def test_completion_invalid_echo_is_refused(
    body: dict[str, Any], param: str | None, toy_folder: Path
) -> None:
    body = {"prompt": TEXT, "max_tokens": 0, "echo": True, **body}
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        response = await client.post(PATH, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
