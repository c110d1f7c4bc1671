"""HTTP clients that disconnect or do not read: their requests end, others are not affected."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from protos import mesh_pb2
from tests.coordinator.api.http.events import stream_events
from tests.coordinator.toy_mesh import ToyMesh, collect, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PATH = "/v1/completions"
ENDLESS = {"prompt": [[5, 6, 7], [8, 9]], "max_tokens": 500, "temperature": 0, "ignore_eos": True}


async def send(
    mesh: ToyMesh, body: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request over a raw connection, which the test may close at any moment."""
    host, _, port = mesh.addresses.http.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**12)
    content = json.dumps(body).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await writer.drain()
    return reader, writer


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def is_running(state: mesh_pb2.GetStateResponse) -> bool:
    return state.num_running > 0


def is_waiting(state: mesh_pb2.GetStateResponse) -> bool:
    return state.num_waiting > 0


@pytest.mark.parametrize("num_choices", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_disconnects_while_running_stops_generation(
    stream: bool, num_choices: int, toy_folder: Path
) -> None:
    """Case 7: vllm#9428; vllm#14326, where several choices could not be stopped."""
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        _, writer = await send(mesh, {**ENDLESS, "stream": stream, "n": num_choices})
        await mesh.until(is_running)
        await leave(writer)
        state = await mesh.until_idle()
        # Far fewer than the 500 requested: generation was cancelled.
        assert state.replicas[0].num_steps < 400


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_disconnects_with_steps_in_flight_frees_all_blocks(
    stream: bool, toy_folder: Path
) -> None:
    """Case 6: sglang#29405, #26912."""
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        for worker in mesh.workers:
            worker.stage.behaviour.running.clear()
        _, writer = await send(mesh, {**ENDLESS, "stream": stream})
        await mesh.until(is_running)
        await leave(writer)
        await mesh.until(lambda state: not is_running(state))
        for worker in mesh.workers:
            worker.stage.behaviour.running.set()
        await mesh.until_idle()
        answer = (await collect(mesh.infer(token_request((5, 6, 7)))))[0]
        assert answer.tokens == toy_answer((5, 6, 7), 8)


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_disconnects_while_waiting_leaves_the_queue(
    stream: bool, toy_folder: Path
) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh:
        await mesh.until(lambda state: state.phase.startswith("waiting"))
        _, writer = await send(mesh, {**ENDLESS, "stream": stream})
        await mesh.until(is_waiting)
        await leave(writer)
        await mesh.until(lambda state: not is_waiting(state))


async def test_client_that_disconnects_within_its_body_leaves_no_state(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh, mesh.http() as client:
        host, _, port = mesh.addresses.http.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: 100\r\n\r\n{{".encode())
        await leave(writer)
        assert (await client.get("/health")).status_code == 200


async def test_client_that_does_not_read_delays_no_other_and_loses_nothing(
    toy_folder: Path,
) -> None:
    """Case 20: exo#1726, where full queues dropped messages and cut the output."""
    body = {**ENDLESS, "prompt": [[n] for n in range(1, 9)], "logprobs": 20, "stream": True}
    async with toy_mesh(toy_folder, max_sequences=16) as mesh, mesh.http() as client:
        await mesh.until_ready()
        slots = mesh.workers[0].stage.slots
        reader, writer = await send(mesh, body)
        await mesh.until(is_running)
        slots.emptied.clear()  # the canary has set it
        ask = {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0}
        events = [event async for event in stream_events(client, PATH, ask)]
        text = "".join(event["choices"][0]["text"] for event in events)
        assert text == "".join(f" w{token}" for token in toy_answer((5, 6, 7), 8))
        await slots.emptied.wait()
        texts = dict.fromkeys(range(8), "")
        while (line := await _line(reader)) != "data: [DONE]":
            if line.startswith("data: "):
                [choice] = json.loads(line.removeprefix("data: "))["choices"]
                texts[choice["index"]] += choice["text"]
        await leave(writer)
    for index, text in texts.items():
        assert text == "".join(f" w{token}" for token in toy_answer((index + 1,), 500))


async def test_failure_in_a_stream_is_an_event_without_done(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, grace_seconds=0.05) as mesh, mesh.http() as client:
        await mesh.until_ready()
        body = {**ENDLESS, "max_tokens": 500, "stream": True}
        async with client.stream("POST", PATH, json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            mesh.workers[0].stage.behaviour.running.clear()
            mesh.stop.set()
            rest = [line async for line in lines if line]
        mesh.workers[0].stage.behaviour.running.set()
    error = json.loads(rest[-1].removeprefix("data: "))["error"]
    assert error["code"] == "shutting_down"
    assert "data: [DONE]" not in rest


async def _line(reader: asyncio.StreamReader) -> str:
    """One line of any length, without its end."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            line += await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            line += await reader.readexactly(error.consumed)
    return line.decode().strip()
