"""Fault proxies in a thread, for tests that are not asyncio's."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from stagemesh.faults.fault_proxy import NO_FAULTS, FaultProxy, Faults, accepting

WAIT_SECONDS = 30.0
Held = TypeVar("Held")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, where it is dialled, and the loop that it runs on."""

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
        """Waits until this number has passed since the faults were set."""
        waiting = self._proxy.wait_for_bytes(num_bytes)
        asyncio.run_coroutine_threadsafe(waiting, self._loop).result(WAIT_SECONDS)


@contextmanager
def proxy_to(address: str) -> Iterator[Proxy]:
    """A proxy before HOST:PORT, on a thread of its own."""

    @asynccontextmanager
    async def listening() -> AsyncIterator[Proxy]:
        async with FaultProxy.listening("127.0.0.1:0", address) as (proxy, bound):
            yield Proxy(bound, proxy, asyncio.get_running_loop())

    with _in_thread(listening) as proxy:
        yield proxy


@contextmanager
def two_ways_to(address: str, is_first: Callable[[int], bool]) -> Iterator[tuple[Proxy, Proxy]]:
    """Two proxies before HOST:PORT that are dialled at one address, on a thread of their own.

    A connection leads through the first one if `is_first` is true for the port that it comes from.
    """

    @asynccontextmanager
    async def listening() -> AsyncIterator[tuple[Proxy, Proxy]]:
        first, second = FaultProxy(address), FaultProxy(address)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            port: int = writer.get_extra_info("peername")[1]
            await (first if is_first(port) else second).serve(reader, writer)

        async with accepting("127.0.0.1:0", serve) as bound:
            loop = asyncio.get_running_loop()
            yield Proxy(bound, first, loop), Proxy(bound, second, loop)

    with _in_thread(listening) as proxies:
        yield proxies


@contextmanager
def _in_thread(make: Callable[[], AbstractAsyncContextManager[Held]]) -> Iterator[Held]:
    """What an asyncio context holds, while its loop runs on a thread of its own."""
    started: Future[tuple[Held, Callable[[], object]]] = Future()

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with make() as held:
            started.set_result((held, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    held, stop = started.result(WAIT_SECONDS)
    try:
        yield held
    finally:
        stop()
        thread.join(WAIT_SECONDS)
