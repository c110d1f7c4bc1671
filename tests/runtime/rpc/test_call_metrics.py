"""The counting of gRPC calls, over a real server and channel."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry

from runtime.errors import PromptTooLongError
from runtime.metrics.declarations import ProcessMetrics
from runtime.rpc.call_metrics import Context, count_calls
from runtime.rpc.channels import bind, dial, make_server

METHOD = "/test/Call"


@pytest.fixture
def metrics() -> ProcessMetrics:
    return ProcessMetrics(CollectorRegistry(), "worker")


@asynccontextmanager
async def _serving(metrics: ProcessMetrics, behaviour: Any) -> AsyncIterator[Any]:
    """A channel to a server with the one method over raw bytes, whose calls are counted."""
    handlers: dict[str, Any] = {"Call": grpc.unary_unary_rpc_method_handler(behaviour)}
    server = make_server(count_call=count_calls(metrics))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    address = await bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with dial(address) as channel:
            yield channel
    finally:
        await server.stop(0)


def _value(metrics: ProcessMetrics, name: str, **labels: str) -> float | None:
    labels["method"] = METHOD
    return metrics.registry.get_sample_value(f"stagemesh_{name}", labels)


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (None, "OK"),
        (PromptTooLongError(num_tokens=9, max_tokens=8), "INVALID_ARGUMENT"),
        (RuntimeError("a bug"), "INTERNAL"),
    ],
)
async def test_call_is_counted_by_method_and_status(
    metrics: ProcessMetrics, raised: Exception | None, code: str
) -> None:
    running: list[float | None] = []

    async def behaviour(request: bytes, context: Context) -> bytes:
        running.append(_value(metrics, "grpc_calls_running"))
        if raised is not None:
            raise raised
        return b""

    async with _serving(metrics, behaviour) as channel:
        with suppress(grpc.aio.AioRpcError):
            await channel.unary_unary(METHOD)(b"", timeout=10)
    assert running == [1]
    assert _value(metrics, "grpc_calls_running") == 0
    assert _value(metrics, "grpc_calls_total", code=code) == 1


async def test_call_whose_client_left_is_counted_as_cancelled(metrics: ProcessMetrics) -> None:
    began, over = asyncio.Event(), asyncio.Event()

    async def behaviour(request: bytes, context: Context) -> bytes:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()
        return b""

    async with _serving(metrics, behaviour) as channel:
        call = channel.unary_unary(METHOD)(b"")
        await began.wait()
        call.cancel()
        await over.wait()
    assert _value(metrics, "grpc_calls_total", code="CANCELLED") == 1


async def test_method_that_the_server_lacks_makes_no_series(metrics: ProcessMetrics) -> None:
    async def behaviour(request: bytes, context: Context) -> bytes:
        return b""

    async with _serving(metrics, behaviour) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/test/NoSuchMethod")(b"", timeout=10)
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    assert [sample for sample in samples if "method" in sample.labels] == []
