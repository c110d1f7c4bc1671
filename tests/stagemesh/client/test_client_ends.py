"""How the blocking client ends: streams that are abandoned, and calls while it is closed."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import pytest

from protos import inference_pb2_grpc, mesh_pb2_grpc
from runtime.rpc.channels import bind, make_server
from stagemesh import Client, GenerationRequest
from tests.stagemesh.echo_server import EchoServer

HANGING = GenerationRequest(prompts=("hang",))
PROGRAM = """
import sys
from stagemesh import Client, GenerationRequest

client = Client(sys.argv[1])
stream = client.infer(GenerationRequest(prompts=("hang",)))
print(next(stream).text)
"""


@pytest.fixture
async def api() -> EchoServer:
    return EchoServer()


@pytest.fixture
async def target(api: EchoServer) -> AsyncIterator[str]:
    """The address of `api`."""
    server = make_server()
    inference_pb2_grpc.add_InferenceServicer_to_server(api, server)
    mesh_pb2_grpc.add_OperationsServicer_to_server(api, server)
    address = await bind(server, "127.0.0.1:0")
    await server.start()
    yield address
    await server.stop(0)


async def test_program_that_ends_with_an_open_stream_exits(target: str) -> None:
    command = (sys.executable, "-c", PROGRAM, target)
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "h\n"), done.stderr


async def test_stream_collected_in_the_clients_own_thread_is_cancelled(
    api: EchoServer, target: str
) -> None:
    def run() -> None:
        with Client(target) as client:
            cycle: list[object] = [client.infer(HANGING)]
            cycle.append(cycle)
            next(cycle[0])  # type: ignore[call-overload]
            del cycle
            collected = threading.Event()

            async def collect() -> None:
                gc.collect()
                collected.set()

            client._run(collect())
            assert collected.is_set()
            assert client.state(timeout_seconds=10.0).model == "tiny"

    gc.disable()
    try:
        await asyncio.to_thread(run)
    finally:
        gc.enable()
    await api.abandoned.wait()


async def test_call_while_the_client_is_closed_is_refused(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, may_close = threading.Event(), threading.Event()

    def run() -> None:
        client = Client(target)
        close = client._client.close

        async def close_slowly() -> None:
            closing.set()
            await asyncio.to_thread(may_close.wait)
            await close()

        monkeypatch.setattr(client._client, "close", close_slowly)
        closer = threading.Thread(target=client.close)
        closer.start()
        closing.wait()
        try:
            with pytest.raises(ValueError, match="closed"):
                client.state()
            client.close()
        finally:
            may_close.set()
            closer.join()

    await asyncio.to_thread(run)
