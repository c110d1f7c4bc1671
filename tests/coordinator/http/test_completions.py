"""/v1/completions through a whole coordinator and two fake stages."""

from pathlib import Path
from typing import Any

import pytest

from tests.coordinator.http.events import stream_events
from tests.coordinator.toy_mesh import toy_mesh
from tests.coordinator.toy_model import EOS_ID, toy_answer, toy_logprobs

PATH = "/v1/completions"
PROMPT = (5, 6, 7)


def words(*token_ids: int) -> str:
    return " ".join(f"w{token_id}" for token_id in token_ids)


def answer_words(*token_ids: int) -> str:
    """The text behind a prompt: a space stands in front of each word."""
    return "".join(f" w{token_id}" for token_id in token_ids)


@pytest.mark.parametrize(
    ("prompt", "token_prompts"),
    [
        (words(*PROMPT), [PROMPT]),
        ([words(*PROMPT), words(8)], [PROMPT, (8,)]),
        ([*PROMPT], [PROMPT]),
        ([[*PROMPT], [8, 9]], [PROMPT, (8, 9)]),
    ],
    ids=["string", "strings", "token_ids", "lists_of_token_ids"],
)
async def test_completion_of_any_kind_of_prompt_gives_a_choice_each(
    prompt: object, token_prompts: list[tuple[int, ...]], toy_folder: Path
) -> None:
    body = {"model": "toy", "prompt": prompt, "max_tokens": 4, "temperature": 0}
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        response = await client.post(PATH, json=body)
    answer = response.json()
    assert response.status_code == 200
    assert (answer["object"], answer["model"]) == ("text_completion", "toy")
    assert answer["id"] == "cmpl-" + response.headers["x-request-id"]
    assert [(c["index"], c["text"], c["finish_reason"]) for c in answer["choices"]] == [
        (index, answer_words(*toy_answer(ids, 4)), "length")
        for index, ids in enumerate(token_prompts)
    ]
    num_prompt_tokens = sum(map(len, token_prompts))
    assert answer["usage"] == {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": 4 * len(token_prompts),
        "total_tokens": num_prompt_tokens + 4 * len(token_prompts),
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_completion_streamed_concatenates_to_the_whole_answer(toy_folder: Path) -> None:
    body = {
        "prompt": [words(*PROMPT), words(8)],
        "max_tokens": 20,
        "temperature": 0,
        "stream_options": {"include_usage": True},
    }
    texts, reasons = {0: "", 1: ""}, {}
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        events = [event async for event in stream_events(client, PATH, body)]
    *chunks, last = events
    for chunk in chunks:
        assert chunk["usage"] is None
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            reasons[choice["index"]] = choice["finish_reason"]
    assert texts == {
        0: answer_words(*toy_answer(PROMPT, 20)),
        1: answer_words(*toy_answer((8,), 20)),
    }
    assert reasons == {0: "length", 1: "length"}
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 40,
        "total_tokens": 44,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert len({event["id"] for event in events}) == 1


async def test_completion_streamed_with_continuous_usage_counts_up_to_the_whole(
    toy_folder: Path,
) -> None:
    body = {
        "prompt": [[*PROMPT], [8]],
        "n": 2,
        "max_tokens": 5,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        *events, last = [event async for event in stream_events(client, PATH, body)]
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (4, 20)
    for index, num_prompt_tokens in enumerate((3, 3, 1, 1)):
        told = [e["usage"] for e in events if e["choices"][0]["index"] == index]
        counts = [usage["completion_tokens"] for usage in told]
        assert counts == sorted(counts)
        assert counts[-1] == 5
        assert {usage["prompt_tokens"] for usage in told} == {num_prompt_tokens}


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_tells_what_the_prefix_cache_had(stream: bool, toy_folder: Path) -> None:
    body = {"prompt": [[5] * 40, [9] * 40], "n": 2, "max_tokens": 4}
    told = []
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        for _ in range(2):
            if stream:
                options = {"stream_options": {"include_usage": True}}
                *_, answer = [e async for e in stream_events(client, PATH, body | options)]
            else:
                answer = (await client.post(PATH, json=body)).json()
            told.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            assert answer["usage"]["prompt_tokens"] == 80
    assert told == [0, 64]


async def test_completion_without_max_tokens_gives_sixteen(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        response = await client.post(PATH, json={"prompt": [5], "temperature": 0})
    assert response.json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("prompt", [words(*PROMPT), [*PROMPT]], ids=["text", "token_ids"])
@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_the_prompt_first_also_without_a_token(  # Case 10: vllm#6521
    prompt: object, max_tokens: int, stream: bool, toy_folder: Path
) -> None:
    body: dict[str, Any] = {
        "prompt": prompt,
        "echo": True,
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        if stream:
            events = [event async for event in stream_events(client, PATH, body)]
            choices = [choice for event in events for choice in event["choices"]]
            text, reason = "".join(c["text"] for c in choices), choices[-1]["finish_reason"]
        else:
            [choice] = (await client.post(PATH, json=body)).json()["choices"]
            text, reason = choice["text"], choice["finish_reason"]
    assert text == words(*PROMPT) + answer_words(*toy_answer(PROMPT, max_tokens))
    assert reason == "length"


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
async def test_n_gives_so_many_choices_of_each_prompt(stream: bool, toy_folder: Path) -> None:
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
    # From the middle of one token over a whole one into a third.
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
