"""Calls to a wrong port are recognised: real servers of other protocols."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protos import mesh_pb2, mesh_pb2_grpc
from runtime.errors import NotReadyError
from runtime.rpc import channels
from runtime.rpc.tls import MeshTls, Role
from runtime.rpc.wrong_endpoint import WrongEndpoint, find_wrong_endpoint
from stagemesh.certificates import LOCAL_HOSTS, NodeRequest, make_certificates


@asynccontextmanager
async def http_server(answer: bytes) -> AsyncIterator[str]:
    """Answers whatever is sent with `answer`, and closes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def grpc_server(tls: MeshTls | None = None) -> AsyncIterator[str]:
    """Has no service at all."""
    server = channels.make_server()
    address = await channels.bind(server, "127.0.0.1:0", tls)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


async def ask(address: str, tls: channels.ChannelTls | None = None) -> WrongEndpoint | None:
    """Who is found to have answered."""
    async with channels.dial(address, tls) as channel:
        stub = mesh_pb2_grpc.OperationsStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetState(mesh_pb2.GetStateRequest(), timeout=10)
    return find_wrong_endpoint(caught.value)


@pytest.fixture
def tls(tmp_path: Path) -> MeshTls:
    """A coordinator's certificates."""
    node = NodeRequest("a", (Role.COORDINATOR,), LOCAL_HOSTS, timedelta(days=1))
    make_certificates(tmp_path, node, is_renewal=False)
    return MeshTls.open(tmp_path / "a", Role.COORDINATOR)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"HTTP/1.0 505 Nope\r\nserver: x\r\n\r\n"]
)
async def test_http_server_is_found(answer: bytes) -> None:
    async with http_server(answer) as address:
        assert await ask(address) is WrongEndpoint.HTTP


async def test_gateway_without_a_backend_is_no_wrong_endpoint() -> None:
    async with http_server(b"HTTP/1.1 502 Bad Gateway\r\n\r\n") as address:
        assert await ask(address) is None


async def test_server_without_the_method_is_found() -> None:
    async with grpc_server() as address:
        assert await ask(address) is WrongEndpoint.OTHER_SERVICE


async def test_tls_server_dialled_without_tls_is_found(tls: MeshTls) -> None:
    async with grpc_server(tls) as address:
        assert await ask(address) is WrongEndpoint.HANGS_UP


async def test_plain_server_dialled_with_tls_is_found(tls: MeshTls) -> None:
    async with grpc_server() as address:
        assert await ask(address, tls.credentials_for(Role.COORDINATOR)) is WrongEndpoint.NO_TLS


async def test_closed_port_is_no_wrong_endpoint() -> None:
    async with grpc_server() as address:
        pass
    assert await ask(address) is None


async def test_right_server_that_refuses_is_no_wrong_endpoint() -> None:
    class Operations(mesh_pb2_grpc.OperationsServicer):
        async def GetState(self, request: object, context: object) -> None:  # type: ignore[override]  # noqa: N802
            raise NotReadyError(phase="loading")

        async def Drain(self, request: object, context: object) -> None:  # type: ignore[override]  # noqa: N802
            raise NotReadyError(phase="loading")

    server = channels.make_server()
    mesh_pb2_grpc.add_OperationsServicer_to_server(Operations(), server)
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    assert await ask(address) is None
    await server.stop(None)
