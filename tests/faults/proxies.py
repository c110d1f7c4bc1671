"""Fault proxies in a thread, for tests that are not asyncio's."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from stagemesh.fault_proxy import NO_FAULTS, FaultProxy, Faults

WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy and the loop that it runs on."""

    address: str
    _proxy: FaultProxy
    _loop: asyncio.AbstractEventLoop

    def set(self, faults: Faults) -> None:
        """These faults from now on."""

        async def change() -> None:
            self._proxy.set(faults)

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(WAIT_SECONDS)

    def heal(self) -> None:
        """No faults from now on."""
        self.set(NO_FAULTS)

    def wait_for_bytes(self, num_bytes: int) -> None:
        """Returns once so many have passed since the faults were set."""
        waiting = self._proxy.wait_for_bytes(num_bytes)
        asyncio.run_coroutine_threadsafe(waiting, self._loop).result(WAIT_SECONDS)


@contextmanager
def proxy_to(address: str) -> Iterator[Proxy]:
    """A proxy before HOST:PORT, on a thread of its own."""
    started: Future[tuple[Proxy, asyncio.Event]] = Future()

    async def run() -> None:
        stop = asyncio.Event()
        async with FaultProxy.listening("127.0.0.1:0", address) as (proxy, bound):
            started.set_result((Proxy(bound, proxy, asyncio.get_running_loop()), stop))
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    proxy, stop = started.result(WAIT_SECONDS)
    try:
        yield proxy
    finally:
        proxy._loop.call_soon_threadsafe(stop.set)
        thread.join(WAIT_SECONDS)
