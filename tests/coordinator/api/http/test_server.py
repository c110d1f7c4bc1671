"""Idle connections: each is closed in time, and no connection with a running request is."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from coordinator.api.http import server
from tests.coordinator.api.http.test_streaming_response import (
    ENDLESS,
    PATH,
    is_running,
    is_waiting,
    leave,
    send,
)
from tests.coordinator.toy_mesh import ToyMesh, collect, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(mesh: ToyMesh) -> Connection:
    host, _, port = mesh.addresses.http.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def read_end(connection: Connection) -> bytes:
    """The bytes that the API sends before it closes the connection."""
    reader, writer = connection
    with contextlib.suppress(ConnectionError):
        rest = await reader.read()
        writer.close()
        return rest
    return b""


@pytest.mark.parametrize(
    "opening",
    [
        b"",
        b"GET /health HT",
        b"GET /health HTTP/1.1\r\nhost: x\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /hea",
        b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{",
    ],
    ids=["nothing", "line", "headers", "next", "body"],
)
async def test_connection_without_a_request_is_closed(
    opening: bytes, toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.05)
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        connection = await connect(mesh)
        connection[1].write(opening)
        end = await read_end(connection)
        assert end.count(b"HTTP/1.1") == opening.count(b"\r\n\r\n")


async def test_slow_headers_do_not_extend_the_deadline(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.05)

    async def trickle(writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /health HTTP/1.1\r\n")
        while True:
            writer.write(b"a: b\r\n")
            await asyncio.sleep(0.01)

    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        connection = await connect(mesh)
        trickling = asyncio.create_task(trickle(connection[1]))
        assert await read_end(connection) == b""
        trickling.cancel()


async def test_request_that_waits_keeps_its_connection(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.05)
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        await mesh.until(lambda state: state.phase.startswith("waiting"))
        _, writer = await send(mesh, ENDLESS)
        await mesh.until(is_waiting)
        await read_end(await connect(mesh))  # until an idle connection is closed
        assert is_waiting(await mesh.state())
        await leave(writer)
        await mesh.until(lambda state: not is_waiting(state))


async def test_client_that_never_reads_is_disconnected_and_others_continue(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STALL_SECONDS", 0.05)
    body = {**ENDLESS, "prompt": [[n] for n in range(1, 9)], "logprobs": 20, "stream": True}
    async with toy_mesh(toy_folder, max_sequences=16) as mesh:
        await mesh.until_ready()
        slots = mesh.workers[0].stage.slots
        _, writer = await send(mesh, body)
        await mesh.until(is_running)
        slots.emptied.clear()  # the canary has set it
        await slots.emptied.wait()
        assert (await collect(mesh.infer(token_request((5, 6, 7)))))[0].tokens == toy_answer(
            (5, 6, 7), 8
        )
        await mesh.until_idle()
        writer.transport.abort()


async def test_answer_read_in_time_is_complete(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        await mesh.until_ready()
        for _ in range(3):
            response = await client.post(PATH, json={**ENDLESS, "max_tokens": 3})
            assert response.status_code == 200
