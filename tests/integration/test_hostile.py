"""Hostile clients: each gets one error at once, and affects no other client."""

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import psutil
import pytest

from protos import inference_pb2
from runtime.addresses import split_address
from runtime.rpc.channels import CHANNEL_OPTIONS
from stagemesh import GenerationRequest, TokenIds
from tests.integration.processes import Mesh
from tests.integration.tiny_chat import TinyChat

pytestmark = pytest.mark.integration

PROMPT = (5, 6, 7)
NUM_TOKENS = 40
# A refusal costs the sender's own message its way in, not a tokenization or a loop over it.
REFUSAL_SECONDS = 5.0


def _text(text: str) -> bytes:
    prompt = inference_pb2.Prompt(text=text)
    return inference_pb2.InferRequest(prompts=[prompt]).SerializeToString()


def _empty_chat_of(num_messages: int) -> bytes:
    chat = inference_pb2.Chat(messages=[inference_pb2.ChatMessage()] * num_messages)
    prompt = inference_pb2.Prompt(chat=chat)
    return inference_pb2.InferRequest(prompts=[prompt]).SerializeToString()


def _ids(**counts: int) -> bytes:
    ids = inference_pb2.TokenIds(ids=[5] * counts.get("prompt", 3))
    prompts = [inference_pb2.Prompt(token_ids=ids)] * counts.get("prompts", 1)
    stop_ids = [5] * counts.get("stop", 0)
    request = inference_pb2.InferRequest(prompts=prompts, stop_token_ids=stop_ids)
    return request.SerializeToString()


@pytest.mark.parametrize(
    "make_message",
    [
        lambda: _text("a" * (15 << 20)),
        lambda: _empty_chat_of(300_000),
        lambda: _ids(prompt=5_000_000),
        lambda: _ids(stop=5_000_000),
        lambda: _ids(prompts=100_000),
        lambda: b"\x0a\x02\xff\xfe",
        lambda: os.urandom(1000) + b"\xff",
    ],
    ids=["text", "messages", "token_ids", "stop_ids", "prompts", "no_utf8", "garbage"],
)
def test_hostile_request_is_refused_and_costs_an_innocent_nothing(
    make_message: Callable[[], bytes], pair: Mesh, tiny_chat: TinyChat
) -> None:
    honest = GenerationRequest(prompts=(TokenIds(PROMPT),), max_tokens=NUM_TOKENS, ignore_eos=True)
    epoch = pair.state().replicas[0].epoch
    message = make_message()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(pair.ask, honest)
        assert _refusal(pair.target, message) is grpc.StatusCode.INVALID_ARGUMENT
        assert asking.result().token_ids() == tiny_chat.greedy(PROMPT, NUM_TOKENS)
    assert pair.state().replicas[0].epoch == epoch


def test_garbage_on_every_port_changes_nothing(pair: Mesh, tiny_chat: TinyChat) -> None:
    listening = {
        connection.laddr.port
        for process in pair.command.descendants()
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert split_address(pair.target)[1] in listening
    tls_hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    for port in listening:
        for garbage in (tls_hello, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(garbage + os.urandom(500))
    request = GenerationRequest(prompts=(TokenIds(PROMPT),), max_tokens=3, ignore_eos=True)
    assert pair.ask(request).token_ids() == tiny_chat.greedy(PROMPT, 3)


def _refusal(target: str, message: bytes) -> Any:
    """The status that ends an Infer call whose request is these very bytes."""
    with grpc.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        method: Any = channel.unary_stream("/stagemesh.v1.Inference/Infer")
        call = method(message, timeout=REFUSAL_SECONDS)
        with pytest.raises(grpc.RpcError):
            list(call)
        return call.code()
