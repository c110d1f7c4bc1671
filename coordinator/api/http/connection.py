"""Owns the life of work that a client waits for: it ends when the client's connection does."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Send


async def while_connected(
    receive: Receive, send: Send, work: Callable[[Send], Coroutine[Any, Any, None]]
) -> None:
    """Runs `work`, which sends one response; cancels it when the client goes away before its end.

    Then it raises `ClientDisconnect`. The request's body must have been read.
    """
    is_complete = False

    async def noting_send(message: Message) -> None:
        nonlocal is_complete
        # Before it is sent: a complete response, too, lets `receive` say that all is over.
        is_complete = message["type"] == "http.response.body" and not message.get("more_body")
        await send(message)

    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work(noting_send))
        leaving = tasks.create_task(_disconnected(receive))
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        has_left = not working.done() and not is_complete
        if has_left:
            working.cancel()
    if has_left:
        raise ClientDisconnect


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
