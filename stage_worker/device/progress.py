"""Passes progress from the device's thread to a response stream; only the latest value is kept.

A slow client does not delay loading, and a client that disconnects stops it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from runtime.errors import RequestCancelledError

ProgressFn = Callable[[int, int], None]
_T = TypeVar("_T")


async def with_progress(
    job: Callable[[ProgressFn], Awaitable[_T]],
    send: Callable[[int, int], Awaitable[None]],
) -> _T:
    """Awaits `job`, passes its reports (done, total) to `send`, and returns its result.

    `job` may report from any thread. Once this call is cancelled or has failed, the next report
    raises RequestCancelledError, which ends the job.
    """
    mailbox = _Mailbox(asyncio.get_running_loop())
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(mailbox.pump(send))
            result = await job(mailbox.report)
            mailbox.close()
    finally:
        mailbox.close()
    return result


class _Mailbox:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_closed = False
        self._loop = loop
        self._latest = (0, 0)
        self._changed = asyncio.Event()

    def report(self, done: int, total: int) -> None:
        if self._is_closed:
            raise RequestCancelledError
        self._latest = (done, total)
        self._loop.call_soon_threadsafe(self._changed.set)

    async def pump(self, send: Callable[[int, int], Awaitable[None]]) -> None:
        """Sends reports until closed; never ends during a message."""
        while not self._is_closed:
            await self._changed.wait()
            self._changed.clear()
            await send(*self._latest)

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()
