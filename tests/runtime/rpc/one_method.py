"""A real server with one method over raw bytes, and a channel to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from runtime.rpc.channels import bind, dial, make_server

Context = grpc.aio.ServicerContext[bytes, bytes]


@asynccontextmanager
async def serving(name: str, handler: "grpc.RpcMethodHandler[Any, Any]") -> AsyncIterator[Any]:
    """A channel to a server with the one method `/test/<name>` over raw bytes."""
    server = make_server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test", {name: handler}),)
    )
    address = await bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with dial(address) as channel:
            yield channel
    finally:
        await server.stop(0)
