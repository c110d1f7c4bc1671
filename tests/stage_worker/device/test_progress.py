"""Progress from the device's thread to a stream: latest value, errors, disconnected clients."""

import asyncio
import threading

import pytest

from runtime.errors import RequestCancelledError
from stage_worker.device.progress import ProgressFn, with_progress


async def test_with_progress_returns_the_result_after_the_last_report() -> None:
    sent: list[tuple[int, int]] = []

    async def job(progress: ProgressFn) -> str:
        for done in range(4):
            await asyncio.to_thread(progress, done, 3)
        return "loaded"

    async def send(done: int, total: int) -> None:
        sent.append((done, total))

    assert await with_progress(job, send) == "loaded"
    assert sent[-1] == (3, 3)


async def test_with_progress_slow_client_gets_the_latest_without_delaying_the_job() -> None:
    sent: list[int] = []
    finished = asyncio.Event()

    async def job(progress: ProgressFn) -> None:
        progress(0, 100)
        await asyncio.sleep(0)
        for done in range(1, 101):
            progress(done, 100)
        finished.set()

    async def send(done: int, total: int) -> None:
        await finished.wait()
        sent.append(done)

    await with_progress(job, send)

    assert sent[-1] == 100
    assert len(sent) <= 3


async def test_with_progress_cancelled_makes_the_next_report_raise() -> None:
    cancelled = threading.Event()
    raised: list[BaseException] = []
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(progress: ProgressFn) -> None:
        progress(1, 2)
        cancelled.wait(10)
        try:
            progress(2, 2)
        except RequestCancelledError as error:
            raised.append(error)
        loop.call_soon_threadsafe(ended.set)

    begun = asyncio.Event()

    async def send(done: int, total: int) -> None:
        begun.set()

    task = asyncio.create_task(
        with_progress(lambda progress: asyncio.to_thread(work, progress), send)
    )
    await begun.wait()
    task.cancel()
    await asyncio.wait((task,))
    cancelled.set()
    await ended.wait()

    assert len(raised) == 1


async def test_with_progress_failing_job_raises_its_error() -> None:
    async def job(_: ProgressFn) -> None:
        raise RequestCancelledError

    async def send(done: int, total: int) -> None:
        raise AssertionError("nothing was reported")

    with pytest.raises(ExceptionGroup) as caught:
        await with_progress(job, send)

    assert caught.group_contains(RequestCancelledError)
