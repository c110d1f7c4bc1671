"""`buf curl`, which knows the API by reflection alone, against a mesh of real processes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.processes import ANSWER_SECONDS, Mesh
from tests.integration.tiny_chat import TinyChat

pytestmark = pytest.mark.integration

BUF = str(Path(sys.executable).with_name("buf"))
PROMPT = (5, 6, 7, 8)


def buf_curl(mesh: Mesh, method: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Calls a method, or asks about the server where there is none."""
    command = (BUF, "curl", "--protocol", "grpc", "--http2-prior-knowledge", *options)
    return subprocess.run(
        (*command, f"http://{mesh.target}{method}"),
        capture_output=True,
        text=True,
        check=False,
        timeout=ANSWER_SECONDS,
    )


def messages(text: str) -> Iterator[Any]:
    """JSON documents that stand behind each other."""
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        message, end = decoder.raw_decode(text)
        text = text[end:]
        yield message


def test_buf_curl_lists_services_and_methods(mesh: Mesh) -> None:
    services = buf_curl(mesh, "", "--list-services")
    assert services.returncode == 0, services.stderr
    assert {"stagemesh.v1.Inference", "grpc.health.v1.Health"} <= set(services.stdout.split())
    methods = buf_curl(mesh, "", "--list-methods")
    assert methods.returncode == 0, methods.stderr
    names = ("Infer", "Tokenize", "Detokenize", "ListModels", "Cancel")
    assert {f"stagemesh.v1.Inference/{name}" for name in names} <= set(methods.stdout.split())


def test_buf_curl_describes_and_calls_a_method(mesh: Mesh) -> None:
    called = buf_curl(mesh, "/stagemesh.v1.Inference/ListModels", "--data", "{}", "--verbose")
    assert called.returncode == 0, called.stderr
    assert json.loads(called.stdout)["models"][0]["name"] == "tiny-chat"
    health = buf_curl(
        mesh, "/grpc.health.v1.Health/Check", "--data", '{"service": "stagemesh.v1.Inference"}'
    )
    assert json.loads(health.stdout) == {"status": "SERVING"}


def test_buf_curl_streams_an_answer(mesh: Mesh, tiny_chat: TinyChat) -> None:
    request = {"prompts": [{"tokenIds": {"ids": PROMPT}}], "maxTokens": 12, "ignoreEos": True}
    options = ("--emit-defaults", "--data", json.dumps(request))
    called = buf_curl(mesh, "/stagemesh.v1.Inference/Infer", *options)
    assert called.returncode == 0, called.stderr
    responses = list(messages(called.stdout))
    token_ids = tuple(token["id"] for response in responses for token in response["tokens"])
    assert token_ids == tiny_chat.greedy(PROMPT, 12)
    assert "".join(response["text"] for response in responses) == tiny_chat.decode(token_ids)
    assert responses[-1]["finishReason"] == "FINISH_REASON_LENGTH"


def test_buf_curl_shows_what_is_wrong_with_a_request(mesh: Mesh) -> None:
    request = '{"prompts": [{"text": "the"}], "sampling": {"topP": 7}}'
    called = buf_curl(mesh, "/stagemesh.v1.Inference/Infer", "--data", request)
    assert called.returncode != 0
    error = json.loads(called.stderr)
    assert error["code"] == "invalid_argument"
    assert "top_p" in error["message"]
