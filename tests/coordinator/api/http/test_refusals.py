"""Requests that the HTTP API refuses: one error each, in OpenAI's shape."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.coordinator.api.http.bad_bodies import BAD_CHATS, BAD_COMPLETIONS
from tests.coordinator.toy_mesh import collect, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
JSON = {"content-type": "application/json"}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of a response; asserts its shape."""
    [(name, error)] = response.json().items()
    assert name == "error"
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["message"]
    assert response.headers["x-request-id"]
    return dict(error)


async def test_bad_bodies_get_one_clear_error_each(toy_folder: Path) -> None:
    text: dict[str, Any] = {"prompt": "w1"}
    cases = [(COMPLETIONS, text if case[0] else {}, *case) for case in BAD_COMPLETIONS]
    chat: dict[str, Any] = {"messages": HELLO}
    cases += [(CHAT, chat, *case) for case in BAD_CHATS]
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        for path, good, bad, status, code, param in cases:
            content = json.dumps({**good, **bad})
            response = await client.post(path, content=content, headers=JSON)
            error = error_of(response)
            assert (response.status_code, error["code"], error["param"]) == (status, code, param), (
                bad,
                error,
            )
        body = {"prompt": "w5 w6 w7", "max_tokens": 8, "temperature": 0}
        assert (await client.post(COMPLETIONS, json=body)).status_code == 200
        assert (await collect(mesh.infer(token_request((5, 6, 7)))))[0].tokens == toy_answer(
            (5, 6, 7), 8
        )


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"", JSON, 400, "invalid_request"),
        (b"{", JSON, 400, "invalid_request"),
        (b"[]", JSON, 400, "invalid_request"),
        (b'"prompt"', JSON, 400, "invalid_request"),
        (b"\xff\xfe", JSON, 400, "invalid_request"),
        (b'{"temperature": NaN}', JSON, 400, "invalid_request"),
        (b'{"temperature": -Infinity}', JSON, 400, "invalid_request"),
        (b'{"seed": ' + b"9" * 5000 + b"}", JSON, 400, "invalid_request"),
        (b"[" * 100_000, JSON, 400, "invalid_request"),
        (b'{"prompt": [' + b"[]," * 70_000 + b"[]]}", JSON, 400, "invalid_request"),
        (b'{"prompt": "' + b"x" * 5000 + b'"}', JSON, 413, "request_too_large"),
        (b"{}", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        (b"{}", {}, 415, "unsupported_media_type"),
        (b"{}", {**JSON, "x-request-id": "x" * 200}, 400, "invalid_request"),
    ],
)
async def test_bodies_that_are_not_a_request_are_refused(
    content: bytes, headers: dict[str, str], status: int, code: str, toy_folder: Path
) -> None:
    limit = 4096 if status == 413 else 1 << 20
    async with (
        toy_mesh(toy_folder, num_workers=0, max_request_bytes=limit) as mesh,
        mesh.http() as client,
    ):
        response = await client.post(COMPLETIONS, content=content, headers=headers)
        assert (response.status_code, error_of(response)["code"]) == (status, code)


async def test_text_full_of_brackets_is_read(toy_folder: Path) -> None:
    brackets = ' \\" [{' * 40_000
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        answer = await client.post("/tokenize", json={"prompt": f"w5 {brackets}"})
    assert answer.status_code == 200
    assert len(answer.json()["tokens"]) == 1 + 2 * 40_000


async def test_headers_without_an_end_close_the_connection(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        host, _, port = mesh.addresses.http.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 20_000)
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        writer.close()


async def test_body_without_a_length_is_refused_at_the_limit(toy_folder: Path) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 1024

    async with (
        toy_mesh(toy_folder, num_workers=0, max_request_bytes=4096) as mesh,
        mesh.http() as client,
    ):
        response = await client.post(COMPLETIONS, content=endless(), headers=JSON)
        assert response.status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "unknown_route"),
        ("GET", "/v1/model", 404, "unknown_route"),
        ("GET", "/v1/models/", 404, "unknown_route"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("POST", "/v1/embeddings", 400, "unsupported_parameter"),
    ],
)
async def test_unknown_paths_and_methods_are_refused(
    method: str, path: str, status: int, code: str, toy_folder: Path
) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh, mesh.http() as client:
        response = await client.request(method, path)
        assert (response.status_code, error_of(response)["code"]) == (status, code)


async def test_full_queue_is_429_with_retry_after(toy_folder: Path) -> None:
    async with (
        toy_mesh(toy_folder, num_workers=0, max_waiting=1) as mesh,
        mesh.http() as client,
    ):
        await mesh.until(lambda state: state.phase.startswith("waiting"))
        first = mesh.infer(token_request((5, 6, 7)))
        await mesh.until(lambda state: state.num_waiting == 1)
        response = await client.post(COMPLETIONS, json={"prompt": "w1"})
        assert (response.status_code, error_of(response)["type"]) == (429, "rate_limit_error")
        assert response.headers["retry-after"] == "1"
        first.cancel()


async def test_model_that_cannot_be_served_is_503_with_retry_after(tmp_path: Path) -> None:
    async with toy_mesh(tmp_path / "nothing", num_workers=0) as mesh, mesh.http() as client:
        await mesh.until(lambda state: bool(state.failure))
        response = await client.post(COMPLETIONS, json={"prompt": "w1", "stream": True})
        assert (response.status_code, error_of(response)["code"]) == (503, "not_ready")
        assert response.headers["retry-after"] == "1"
