"""The end of a conversation: a new assistant turn, none, or a continued last message."""

from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from coordinator.tokenization.tokenizer import Tokenizer
from protos import inference_pb2
from runtime.errors import ChatTemplateError
from runtime.protocol.inference_types import ChatMessage
from tests.coordinator.tokenization.tokenizer_models import load_bundled
from tests.coordinator.toy_mesh import collect, toy_mesh

TURNS = (
    ChatMessage("system", "Be brief."),
    ChatMessage("user", "Name a colour."),
    ChatMessage("assistant", "Red."),
    ChatMessage("user", "Another?"),
    ChatMessage("assistant", "The colour is"),
)


@pytest.fixture(scope="module")
def bundled() -> Tokenizer:
    return load_bundled()


def test_render_chat_of_many_turns_with_a_system_prompt_has_all_of_them(bundled: Tokenizer) -> None:
    rendered = bundled.render_chat(TURNS[:4])
    turns = (f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in TURNS[:4])
    assert rendered == "".join(turns) + "<|im_start|>assistant\n"


def test_render_chat_that_continues_stops_behind_the_last_message(bundled: Tokenizer) -> None:
    closed = bundled.render_chat(TURNS, add_generation_prompt=False)
    opened = bundled.render_chat(TURNS, add_generation_prompt=False, continue_final_message=True)
    assert opened.endswith("<|im_start|>assistant\nThe colour is")
    assert closed == opened + "<|im_end|>\n"


def test_render_chat_that_continues_text_the_template_drops_is_refused(
    bundled: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundled._transformers, "chat_template", "{{ messages[0].content }}")
    with pytest.raises(ChatTemplateError, match="final message does not appear"):
        bundled.render_chat(TURNS, add_generation_prompt=False, continue_final_message=True)


# The toy's template writes a word for each message, then `w1`.
BODIES: list[tuple[dict[str, Any], int]] = [
    ({}, 200),
    ({"add_generation_prompt": True}, 200),
    ({"add_generation_prompt": False}, 200),
    ({"add_generation_prompt": True, "continue_final_message": True}, 400),
    ({"add_generation_prompt": "no"}, 400),
    ({"continue_final_message": 1}, 400),
]


async def test_http_chat_ends_as_requested(toy_folder: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        for change, status in BODIES:
            for path in ("/v1/chat/completions", "/tokenize"):
                response = await client.post(path, json={"messages": messages, **change})
                assert response.status_code == status, (path, change, response.text)
                if status == 400:
                    assert response.json()["error"]["param"] in change


async def test_infer_that_starts_a_turn_and_continues_one_is_refused(toy_folder: Path) -> None:
    chat = inference_pb2.Chat(
        messages=[inference_pb2.ChatMessage(role="user", content="hi")],
        add_generation_prompt=True,
        continue_final_message=True,
    )
    request = inference_pb2.InferRequest(prompts=[inference_pb2.Prompt(chat=chat)], max_tokens=2)
    async with toy_mesh(toy_folder) as mesh:
        with pytest.raises(grpc.aio.AioRpcError, match="add_generation_prompt"):
            await collect(mesh.infer(request))
        chat.ClearField("continue_final_message")
        request.prompts[0].chat.CopyFrom(chat)
        answer = (await collect(mesh.infer(request)))[0]
    assert len(answer.tokens) == 2
