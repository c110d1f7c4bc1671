"""The HTTP listener: uvicorn's protocol on the running event loop, with deadlines for clients.

uvicorn's own main loop is not used: it installs signal handlers, which are the process's, and polls
ten times a second.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from runtime.rpc import channels
from runtime.rpc.tls import ApiTls

if TYPE_CHECKING:
    import socket

# The request line and headers. h11 has this limit; uvicorn's faster parser has none.
_MAX_HEAD_BYTES: Final = 1 << 16
# From the connection, or the last response, to the end of the next request's headers.
HEAD_SECONDS: Final = 10.0
# For the client to read about 64 KiB of a response.
STALL_SECONDS: Final = 120.0


class ApiProtocol(H11Protocol):
    """One connection; it is closed when the client is idle or stalls for too long.

    uvicorn's own timeout covers only the time between two requests. It does not cover a client that
    sends nothing at first, that sends its headers slowly, or that does not read its response.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the timer for the first request's headers."""
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the timers."""
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes a part of a request; complete headers stop the timer."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """Starts the timer for the next request's headers."""
        super().on_response_complete()
        self._watch_head()

    def pause_writing(self) -> None:
        """Starts the timer for a client that does not read its response."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Stops that timer."""
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _watch_head(self) -> None:
        # uvicorn's annotation of `cycle` omits None, its value before the first request.
        is_idle = self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]
        if not is_idle and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        elif is_idle and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)


class HttpServer:
    """One listener; `bind`, then `start`, then `stop`."""

    def __init__(self, app: ASGIApp, grace_seconds: int, tls: ApiTls | None = None) -> None:
        """`grace_seconds` bounds how long `stop` waits for running responses; `tls` means HTTPS."""
        config = Config(
            app,
            http=ApiProtocol,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=grace_seconds,
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
        )
        config.load()
        self._server = Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._sockets: list[socket.socket] = []

    async def bind(self, address: str) -> str:
        """Binds HOST:PORT, where port 0 picks a free one; returns HOST:PORT.

        Raises `PortTakenError`.
        """
        bound = await channels.open_socket(address)
        self._sockets.append(bound)
        return f"{address.rpartition(':')[0]}:{bound.getsockname()[1]}"

    async def start(self) -> None:
        """Accepts connections from now on."""
        await self._server.startup(sockets=self._sockets)

    async def stop(self) -> None:
        """Stops accepting, waits for responses up to the grace time, and closes the rest."""
        sockets, self._sockets = self._sockets, []
        if self._server.started:
            self._server.started = False
            await self._server.shutdown(sockets=sockets)
        for unused in sockets:
            unused.close()
