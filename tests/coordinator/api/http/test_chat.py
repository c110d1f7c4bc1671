"""/v1/chat/completions through a whole coordinator and two fake stages."""

from pathlib import Path

import pytest

from tests.coordinator.api.http.events import stream_events
from tests.coordinator.toy_mesh import toy_mesh
from tests.coordinator.toy_model import toy_answer

PATH = "/v1/chat/completions"
# The toy's template writes `w<length>` for each message, then `w1`.
MESSAGES = [{"role": "system", "content": "ab"}, {"role": "user", "content": "abc"}]
PROMPT = (2, 3, 1)
TEXT = "".join(f" w{token_id}" for token_id in toy_answer(PROMPT, 6))


async def test_chat_gives_one_message(toy_folder: Path) -> None:
    body = {"model": "toy", "messages": MESSAGES, "max_completion_tokens": 6, "temperature": 0}
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        answer = (await client.post(PATH, json=body)).json()
    [choice] = answer["choices"]
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": TEXT, "refusal": None},
        "logprobs": None,
        "finish_reason": "length",
    }
    assert answer["usage"]["prompt_tokens"] == 3


async def test_chat_streamed_sends_the_role_once_and_the_finish_reason_last(
    toy_folder: Path,
) -> None:
    body = {"messages": MESSAGES, "max_tokens": 6, "temperature": 0}
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        events = [event async for event in stream_events(client, PATH, body)]
    choices = [choice for event in events for choice in event["choices"]]
    assert all("usage" not in event for event in events)
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert "".join(choice["delta"].get("content", "") for choice in choices) == TEXT
    assert [choice["finish_reason"] for choice in choices[-2:]] == [None, "length"]


async def test_chat_content_in_parts_is_their_text(toy_folder: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]
    body = {"messages": [MESSAGES[0], {"role": "user", "content": parts}], "max_tokens": 6}
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        answer = (await client.post(PATH, json={**body, "temperature": 0})).json()
    assert answer["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_logprobs_are_in_openais_shape(stream: bool, toy_folder: Path) -> None:
    body = {
        "messages": MESSAGES,
        "max_tokens": 6,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
    }
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        if stream:
            events = [event async for event in stream_events(client, PATH, body)]
            choices = [choice for event in events for choice in event["choices"]]
        else:
            choices = (await client.post(PATH, json=body)).json()["choices"]
    entries = [
        entry
        for choice in choices
        if choice["logprobs"] is not None
        for entry in choice["logprobs"]["content"]
    ]
    assert "".join(entry["token"] for entry in entries) == TEXT
    for entry in entries:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 3
        # Greedy: the token is the most likely one.
        likeliest = entry["top_logprobs"][0]
        assert likeliest == {name: entry[name] for name in ("token", "logprob", "bytes")}
