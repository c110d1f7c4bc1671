"""Work that runs apart: its result, its error, and a cancellation that nothing inside swallows."""

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from runtime.host.tasks import run_in_child_task


async def _fail_on(signal: asyncio.Event) -> None:
    await signal.wait()
    raise ValueError


async def _wait_beside_a_failing_child(entered: asyncio.Event, signal: asyncio.Event) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_fail_on(signal))
            entered.set()
            await asyncio.Event().wait()
    except* ValueError:
        pass


async def test_run_in_child_task_returns_the_result() -> None:
    assert await run_in_child_task(asyncio.sleep(0, result=7)) == 7


async def test_run_in_child_task_raises_the_error_and_leaves_no_mark_of_cancellation() -> None:
    signal = asyncio.Event()
    signal.set()
    with pytest.raises(ValueError):  # noqa: PT011 - the work's own, bare error
        await run_in_child_task(_fail_on(signal))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_run_in_child_task_cancelled_while_a_child_fails_stays_cancelled() -> None:
    entered, signal = asyncio.Event(), asyncio.Event()
    work = asyncio.create_task(run_in_child_task(_wait_beside_a_failing_child(entered, signal)))
    await entered.wait()
    signal.set()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


class _Channel:
    """Stands for what work holds, such as a connection."""


async def test_run_in_child_task_whose_error_was_handled_holds_nothing_of_the_work() -> None:
    """A refused worker retries: the channel of each attempt must end with the attempt."""
    held: list[weakref.ref[_Channel]] = []

    async def fail() -> None:
        channel = _Channel()
        held.append(weakref.ref(channel))
        await asyncio.sleep(0)
        raise ValueError("as requested")

    gc.disable()
    try:
        with suppress(ValueError):
            await run_in_child_task(fail())
        assert held[0]() is None
    finally:
        gc.enable()


async def test_run_in_child_task_cancelled_while_the_work_fails_leaves_no_unretrieved_error() -> (
    None
):
    """Otherwise asyncio logs it with a traceback later, for example as the process ends."""
    unseen: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    entered = asyncio.Event()

    async def fail_when_cancelled() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError from None

    work = asyncio.create_task(run_in_child_task(fail_when_cancelled()))
    await entered.wait()
    work.cancel()
    await asyncio.wait((work,))
    assert work.cancelled()
    del work
    gc.collect()
    assert unseen == []
