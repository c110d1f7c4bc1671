"""The metrics listener of a process without an HTTP API.

Runs in a thread of prometheus_client, so a scrape never waits for the event loop.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from errno import EADDRINUSE

from prometheus_client import CollectorRegistry, start_http_server

from runtime.addresses import split_address
from runtime.errors import PortTakenError


@asynccontextmanager
async def serve_metrics(address: str, registry: CollectorRegistry) -> AsyncIterator[str]:
    """Serves `registry` at HOST:PORT, where port 0 selects a free one; yields HOST:PORT.

    Raises `PortTakenError` for an address that is in use or not this machine's.
    """
    host, port = split_address(address)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as exc:
        if exc.errno == EADDRINUSE:
            raise PortTakenError(address=address) from exc
        problem = exc.strerror or os.strerror(exc.errno or 0)
        raise PortTakenError(address=address, problem=f"{problem}; choose another") from exc
    try:
        yield f"{address.rpartition(':')[0]}:{server.server_port}"
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
