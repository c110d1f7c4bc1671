"""Handles stop signals of commands with child processes: the first stops, the second kills."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Cancels the current task at the first stop signal; calls `on_second` at each later one."""

    def __init__(self) -> None:
        self.received = False
        self.on_first: Callable[[], None] = lambda: None
        self.on_second: Callable[[], None] = lambda: None
        self._task = asyncio.current_task()
        for number in _STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._handle)

    def _handle(self) -> None:
        if self.received:
            self.on_second()
        else:
            self.received = True
            self.on_first()
            assert self._task is not None
            self._task.cancel()


def run_interruptible(main: Callable[[Interrupts], Coroutine[Any, Any, T]]) -> T:
    """Runs `main` in a new event loop; raises KeyboardInterrupt after a stop by a signal."""

    async def run() -> T:
        interrupts = Interrupts()
        try:
            return await main(interrupts)
        except asyncio.CancelledError:
            if interrupts.received:
                raise KeyboardInterrupt from None
            raise

    return asyncio.run(run())
