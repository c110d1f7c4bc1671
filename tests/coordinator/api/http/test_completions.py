"""/v1/completions through a whole coordinator and two fake stages."""

from pathlib import Path
from typing import Any

import pytest

from tests.coordinator.api.http.events import stream_events
from tests.coordinator.toy_mesh import toy_mesh
from tests.coordinator.toy_model import answer_words, toy_answer, words

PATH = "/v1/completions"
PROMPT = (5, 6, 7)


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
        reported = [e["usage"] for e in events if e["choices"][0]["index"] == index]
        counts = [usage["completion_tokens"] for usage in reported]
        assert counts == sorted(counts)
        assert counts[-1] == 5
        assert {usage["prompt_tokens"] for usage in reported} == {num_prompt_tokens}


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_reports_tokens_from_the_prefix_cache(stream: bool, toy_folder: Path) -> None:
    body = {"prompt": [[5] * 40, [9] * 40], "n": 2, "max_tokens": 4}
    reported = []
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        for _ in range(2):
            if stream:
                options = {"stream_options": {"include_usage": True}}
                *_, answer = [e async for e in stream_events(client, PATH, body | options)]
            else:
                answer = (await client.post(PATH, json=body)).json()
            reported.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            assert answer["usage"]["prompt_tokens"] == 80
    assert reported == [0, 64]


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
