"""What Prometheus reads from a process without an HTTP API, and the event loop's lag."""

import asyncio
import time
import urllib.request
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram

from runtime.errors import PortTakenError
from runtime.metrics.loop_lag import observe_loop_lag
from runtime.metrics.metrics_server import serve_metrics


async def test_serving_metrics_on_a_free_port_answers_scrapes_until_the_end() -> None:
    registry = CollectorRegistry()
    Gauge("here", "Some gauge.", registry=registry).set(3)

    async with serve_metrics("127.0.0.1:0", registry) as address:
        assert "here 3.0" in await asyncio.to_thread(_read, address)

    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address.rsplit(":", 1))


async def test_serving_metrics_port_taken_raises_its_address() -> None:
    registry = CollectorRegistry()
    async with serve_metrics("127.0.0.1:0", registry) as address:
        with pytest.raises(PortTakenError) as caught:
            await serve_metrics(address, registry).__aenter__()
    assert caught.value.address == address


async def test_serve_metrics_on_another_machines_address_is_refused() -> None:
    with pytest.raises(PortTakenError, match="choose another"):
        await serve_metrics("192.0.2.1:0", CollectorRegistry()).__aenter__()


async def test_loop_lag_of_a_blocked_loop_is_observed() -> None:
    lags: asyncio.Queue[float] = asyncio.Queue()
    histogram = cast("Histogram", SimpleNamespace(observe=lags.put_nowait))
    observing = asyncio.create_task(observe_loop_lag(histogram))
    await asyncio.sleep(0)
    time.sleep(0.5)  # noqa: ASYNC251 - what is not to be done
    assert await lags.get() > 0.1
    observing.cancel()


def _read(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        text: bytes = response.read()
    return text.decode()
