"""Owns how long an HTTP connection may cost something without bringing anything.

uvicorn's own deadline covers connections between two requests only. A client that sends nothing at
first, or its headers one by one, or that does not take its answer, would keep its place for ever.
"""

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

# From the connection, or the last answer, to the end of the next request's headers.
HEAD_SECONDS: Final = 10.0
# For some 64 KiB of an answer to be taken.
STALL_SECONDS: Final = 120.0


class ApiProtocol(H11Protocol):
    """One connection, which is closed when nothing is under way on it for too long."""

    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The client has to say what it wants."""
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A part of a request; only its whole head stops the clock."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """The next request's turn."""
        super().on_response_complete()
        self._watch_head()

    def pause_writing(self) -> None:
        """The client has an answer to take, which waits for it."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _watch_head(self) -> None:
        # uvicorn types the first cycle as if it were always there.
        is_idle = self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]
        if not is_idle and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        elif is_idle and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)
