"""`stagemesh chat` against an API that echoes the conversation."""

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from protos import inference_pb2, inference_pb2_grpc, mesh_pb2, mesh_pb2_grpc
from runtime.errors import QueueFullError
from runtime.rpc.channels import bind, make_server
from stagemesh.cli.commands.chat import chat

Context = grpc.aio.ServicerContext[Any, Any]


class API:
    """Answers with the roles and contents that it was sent; `full` refuses."""

    async def Infer(  # noqa: N802
        self, request: inference_pb2.InferRequest, context: Context
    ) -> AsyncIterator[inference_pb2.InferResponse]:
        messages = request.prompts[0].chat.messages
        if messages[-1].content == "full":
            raise QueueFullError(num_waiting=3, limit=3)
        conversation = " ".join(f"{message.role[0]}:{message.content}" for message in messages)
        for piece in ("[", conversation, "]"):
            yield inference_pb2.InferResponse(text=piece)

    async def GetState(  # noqa: N802
        self, request: mesh_pb2.GetStateRequest, context: Context
    ) -> mesh_pb2.GetStateResponse:
        return mesh_pb2.GetStateResponse(model="tiny", ready=True)


@pytest.fixture
async def target() -> AsyncIterator[str]:
    server = make_server()
    api: Any = API()
    for name in ("Tokenize", "Detokenize", "ListModels", "Cancel", "Drain"):
        setattr(api, name, None)
    inference_pb2_grpc.add_InferenceServicer_to_server(api, server)
    mesh_pb2_grpc.add_OperationsServicer_to_server(api, server)
    address = await bind(server, "127.0.0.1:0")
    await server.start()
    yield address
    await server.stop(0)


async def test_chat_sends_the_whole_conversation_each_time(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\nfull\ntwo\n/reset\nthree\n"))
    await asyncio.to_thread(chat, target=target, system="be brief")
    shown = capsys.readouterr()
    assert [line for line in shown.out.splitlines() if line.startswith("[")] == [
        "[s:be brief u:one]",
        "[s:be brief u:one a:[s:be brief u:one] u:two]",
        "[s:be brief u:three]",
    ]
    assert "error: 3 requests wait already" in shown.err
