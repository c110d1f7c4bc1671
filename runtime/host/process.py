"""The frame of a process: event loop, signals, and the end with the parent process.

Starts no work of its own; `run` passes the caller's coroutine an event for stopping.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

YOUNG_OBJECTS = 20_000
"""Number of new objects that starts a garbage collection.

A step makes several for each of its rows, which end with it and are in no cycle. Python's 700 would
have all of them looked through while they live, several times a step.
"""


def run(
    main: Callable[[asyncio.Event], Coroutine[Any, Any, T]], *, exit_with_parent: bool = False
) -> T:
    """Runs `main(stop)` on uvloop until it returns; SIGINT and SIGTERM set `stop`.

    With `exit_with_parent`, standard input is a pipe whose other end the parent holds open: its
    end sets `stop` too, so that this process does not outlive a parent that was killed.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(main, exit_with_parent))


def tune_gc() -> None:
    """Excludes existing objects from garbage collection, and collects less often.

    A collection of all imported objects takes tens of milliseconds, in which nothing else runs.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


async def _run(
    main: Callable[[asyncio.Event], Coroutine[Any, Any, T]], exit_with_parent: bool
) -> T:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if exit_with_parent:
        _stop_at_end_of(sys.stdin.fileno(), stop, loop)
    return await main(stop)


def _stop_at_end_of(pipe: int, stop: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
    def drain() -> None:
        if not os.read(pipe, 4096):
            loop.remove_reader(pipe)
            stop.set()

    loop.add_reader(pipe, drain)
