"""Reads server-sent events as an OpenAI client does."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx


async def stream_events(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """The events of a streamed call; asserts its status and that it ends with `[DONE]`."""
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        is_done = False
        async for line in response.aiter_lines():
            if not line:
                continue
            assert not is_done
            assert line.startswith("data: ")
            if line == "data: [DONE]":
                is_done = True
            else:
                yield json.loads(line.removeprefix("data: "))
        assert is_done
