"""Runs work in a child task, so that a cancellation is never swallowed."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def run_in_child_task(work: Coroutine[Any, Any, _T]) -> _T:
    """Runs `work` in a child task, which has ended when this returns or is cancelled.

    What task groups inside do to their task stays there: one whose child fails while it is being
    cancelled reports only the failure, and in Python 3.11 one whose child fails while it waits
    leaves its task marked as cancelled.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,))
    finally:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # marks it as seen: a cancellation of ours goes before it
    try:
        return task.result()
    finally:
        # Otherwise the error references this frame, and the frame the error: objects of the work
        # would live until a garbage collection, for example a gRPC channel that keeps dialling.
        del task
