"""The device's thread: one call at a time, outside the event loop, with its busy time."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest

from stage_worker.device import device_thread
from stage_worker.device.device_thread import DeviceThread


@pytest.fixture
def device() -> Iterator[DeviceThread]:
    with closing(DeviceThread(num_threads=1)) as thread:
        yield thread


async def test_run_calls_share_one_thread_that_is_not_the_loops(device: DeviceThread) -> None:
    threads = {await device.run(threading.get_ident) for _ in range(3)}

    assert len(threads) == 1
    assert threads != {threading.get_ident()}


async def test_run_error_reaches_the_caller(device: DeviceThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await device.compute(lambda: 1 // 0)

    assert await device.run(lambda: "alive") == "alive"


async def test_run_cancelled_call_ends_before_the_next_begins(device: DeviceThread) -> None:
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        begun.set()
        go_on.wait(10)
        order.append("first")

    task = asyncio.create_task(device.run(first))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    second = asyncio.create_task(device.run(lambda: order.append("second")))
    go_on.set()
    await second

    assert order == ["first", "second"]


async def test_busy_seconds_counts_the_overlap_with_finished_steps(
    device: DeviceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([10.0, 12.0, 13.0, 17.0])
    monkeypatch.setattr(device_thread, "time", SimpleNamespace(monotonic=lambda: next(times)))

    first = await device.compute(lambda: "a")
    await device.compute(lambda: "b")

    assert (first.value, first.begun_at, first.ended_at) == ("a", 10.0, 12.0)
    assert device.busy_seconds(11.0, 15.0) == 1.0 + 2.0
    assert device.busy_seconds(12.0, 13.0) == 0.0


async def test_busy_seconds_counts_a_step_that_still_runs(
    device: DeviceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    times = iter([10.0, 20.0])
    monkeypatch.setattr(device_thread, "time", SimpleNamespace(monotonic=lambda: next(times)))

    def step() -> None:
        begun.set()
        go_on.wait(10)

    computing = asyncio.create_task(device.compute(step))
    await asyncio.to_thread(begun.wait, 10)

    assert device.busy_seconds(8.0, 14.0) == 4.0
    go_on.set()
    await computing
