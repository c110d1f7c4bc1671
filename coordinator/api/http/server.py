"""Owns the HTTP listener: uvicorn's protocol on the running loop, started and stopped with us.

Uvicorn's own main loop is left out: it takes the signals, which are the process's, and wakes up ten
times a second to see whether it should stop.
"""

from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp
from uvicorn import Config, Server

from coordinator.api.http.protocol import ApiProtocol
from runtime.rpc import channels
from runtime.rpc.tls import ApiTls

if TYPE_CHECKING:
    import socket

# A request's line and headers: h11 has this limit, faster parsers of uvicorn's have none.
_MAX_HEAD_BYTES: Final = 1 << 16


class HttpServer:
    """One listener; `bind`, then `start`, then `stop`."""

    def __init__(self, app: ASGIApp, grace_seconds: int, tls: ApiTls | None = None) -> None:
        """`grace_seconds` is what running responses get at the end; with `tls` it is HTTPS."""
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
        """Takes HOST:PORT, where port 0 picks a free one; returns HOST:PORT.

        Raises `PortTakenError`.
        """
        bound = await channels.open_socket(address)
        self._sockets.append(bound)
        return f"{address.rpartition(':')[0]}:{bound.getsockname()[1]}"

    async def start(self) -> None:
        """Takes connections from now on."""
        await self._server.startup(sockets=self._sockets)

    async def stop(self) -> None:
        """Takes no more connections, lets responses end for the grace time, and cuts the rest."""
        sockets, self._sockets = self._sockets, []
        if self._server.started:
            self._server.started = False
            await self._server.shutdown(sockets=sockets)
        for unused in sockets:
            unused.close()
