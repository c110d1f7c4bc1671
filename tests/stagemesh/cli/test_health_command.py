"""`stagemesh health` and its exit code, against servers with a given health."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from runtime.rpc.channels import bind, make_server
from stagemesh import cli

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
API, WORKER = "stagemesh.v1.Inference", "stagemesh.v1.Stage"


@pytest.fixture
def servicer() -> health.aio.HealthServicer:
    """Alive, without any registered service."""
    return health.aio.HealthServicer()


@pytest.fixture
async def address(servicer: health.aio.HealthServicer) -> AsyncIterator[str]:
    """Where `servicer` answers."""
    server = make_server()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    bound = await bind(server, "127.0.0.1:0")
    await server.start()
    yield bound
    await server.stop(grace=None)


async def probe(*arguments: str) -> object:
    """The exit code of `stagemesh health ARGUMENTS`, run beside the server's event loop."""
    return await asyncio.to_thread(_probe, arguments)


def _probe(arguments: tuple[str, ...]) -> object:
    with pytest.raises(SystemExit) as caught:
        cli.main(("health", *arguments))
    return caught.value.code


async def test_health_of_a_process_that_answers_exits_zero(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await probe(address) == 0
    assert capsys.readouterr().out == f"{address} is alive\n"


@pytest.mark.parametrize("service", [API, WORKER])
async def test_health_ready_follows_the_api_or_the_worker(
    service: str,
    servicer: health.aio.HealthServicer,
    address: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await servicer.set(service, NOT_SERVING)
    assert await probe("--ready", address) == 1
    assert capsys.readouterr().err == f"error: {address} is alive but not ready\n"
    await servicer.set(service, SERVING)
    assert await probe("--ready", address) == 0


async def test_health_while_shutting_down_exits_one(
    servicer: health.aio.HealthServicer, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await servicer.enter_graceful_shutdown()
    assert await probe(address) == 1
    assert "is shutting down" in capsys.readouterr().err


async def test_health_ready_of_another_server_exits_one(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await probe("--ready", address) == 1
    assert "neither an API nor a worker" in capsys.readouterr().err


async def test_health_without_a_server_exits_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert await probe("127.0.0.1:1") == 1
    assert "127.0.0.1:1 does not answer" in capsys.readouterr().err
