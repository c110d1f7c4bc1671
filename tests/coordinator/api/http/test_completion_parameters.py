"""Parameters of /v1/completions, through a whole coordinator and two fake stages."""

from pathlib import Path
from typing import Any

import pytest

from tests.coordinator.api.http.events import stream_events
from tests.coordinator.toy_mesh import toy_mesh
from tests.coordinator.toy_model import EOS_ID, answer_words, toy_answer, toy_logprobs, words

PATH = "/v1/completions"


PROMPT = (5, 6, 7)


async def test_logprobs_name_each_token_and_the_likeliest(toy_folder: Path) -> None:
    body = {"prompt": [*PROMPT], "max_tokens": 3, "temperature": 0, "logprobs": 2}
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        [choice] = (await client.post(PATH, json=body)).json()["choices"]
    logprobs, answer = choice["logprobs"], toy_answer(PROMPT, 3)
    assert logprobs["tokens"] == [f" w{token_id}" for token_id in answer]
    for position, token_id in enumerate(answer):
        expected = toy_logprobs((*PROMPT, *answer[:position]))
        assert logprobs["token_logprobs"][position] == pytest.approx(expected[token_id], rel=1e-5)
        top = logprobs["top_logprobs"][position]
        assert list(top.values()) == pytest.approx(sorted(expected)[: -len(top) - 1 : -1], rel=1e-5)
    assert logprobs["text_offset"][:2] == [0, len(f" w{answer[0]}")]


async def test_very_many_logprobs_all_arrive(toy_folder: Path) -> None:
    body = {"prompt": [*PROMPT], "max_tokens": 200, "temperature": 0, "logprobs": 40}
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        [choice] = (await client.post(PATH, json=body)).json()["choices"]
    assert choice["text"] == answer_words(*toy_answer(PROMPT, 200))
    assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [40] * 200


async def test_sampling_parameters_reach_the_stages(toy_folder: Path) -> None:
    body = {"prompt": [5], "max_tokens": 1, "temperature": 0.5, "top_p": 0.5, "top_k": 10**12}
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        await client.post(PATH, json={**body, "min_p": 0.25, "seed": 7, "user": "me"})
        sampling = mesh.workers[1].stage.slots.samplings[-1]
    assert (sampling.temperature, sampling.top_p, sampling.min_p) == (0.5, 0.5, 0.25)
    assert (sampling.seed, sampling.top_k) == (7, 2**32 - 1)


async def test_logit_parameters_reach_the_stages(toy_folder: Path) -> None:
    body = {
        "prompt": [5, 6],
        "max_tokens": 4,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {"7": -2.5, "8": 1},
        "min_tokens": 3,
        "stop_token_ids": [9],
    }
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        response = await client.post(PATH, json=body)
        assert response.status_code == 200
        sampling = mesh.workers[1].stage.slots.samplings[-1]
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert sampling.repetition_penalty == 1.5
    assert sampling.logit_bias == ((7, -2.5), (8, 1.0))
    assert (sampling.num_prompt_tokens, sampling.suppressed_until) == (2, 5)
    assert sampling.suppressed_ids == (9, EOS_ID)


@pytest.mark.parametrize("stream", [False, True])
async def test_n_gives_this_number_of_choices_for_each_prompt(
    stream: bool, toy_folder: Path
) -> None:
    body: dict[str, Any] = {"prompt": [[5], [8, 9]], "n": 3, "max_tokens": 6, "temperature": 0}
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        if stream:
            options = {"stream_options": {"include_usage": True}}
            events = [e async for e in stream_events(client, PATH, {**body, **options})]
            texts = dict.fromkeys(range(6), "")
            for event in events:
                for choice in event["choices"]:
                    texts[choice["index"]] += choice["text"]
            usage = events[-1]["usage"]
        else:
            answer = (await client.post(PATH, json=body)).json()
            texts = {choice["index"]: choice["text"] for choice in answer["choices"]}
            usage = answer["usage"]
        samplings = mesh.workers[1].stage.slots.samplings[-6:]
    first, second = answer_words(*toy_answer((5,), 6)), answer_words(*toy_answer((8, 9), 6))
    assert texts == {0: first, 1: first, 2: first, 3: second, 4: second, 5: second}
    # A prompt counts once, as OpenAI counts it.
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 36)
    assert usage["total_tokens"] == 39
    assert sorted(sampling.choice for sampling in samplings) == [0, 0, 1, 1, 2, 2]
    assert len({sampling.seed for sampling in samplings}) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize("prompt", [words(*PROMPT), [*PROMPT]], ids=["text", "token_ids"])
async def test_stop_string_across_tokens_ends_the_answer(  # Case 11: vllm#3574, #2577, TGI#1254
    prompt: object, include_stop: bool, stream: bool, toy_folder: Path
) -> None:
    answer = answer_words(*toy_answer(PROMPT, 30))
    # From the middle of one token to the middle of the second next.
    begin = answer.index(" ", 20) - 1
    stop = answer[begin : answer.index(" ", answer.index(" ", begin + 2) + 1) + 2]
    begin = answer.index(stop)
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": 400,
        "temperature": 0,
        "stop": ["never", stop],
        "include_stop": include_stop,
    }
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        if stream:
            texts, reason = [], None
            async for event in stream_events(client, PATH, body):
                [choice] = event["choices"]
                texts.append(choice["text"])
                reason = choice["finish_reason"]
            assert all("".join(texts[:count]) in answer for count in range(len(texts)))
            text = "".join(texts)
        else:
            [choice] = (await client.post(PATH, json=body)).json()["choices"]
            text, reason = choice["text"], choice["finish_reason"]
        state = await mesh.until_idle()
    assert text == answer[: begin + len(stop) if include_stop else begin]
    assert reason == "stop"
    assert state.replicas[0].num_steps < 100
