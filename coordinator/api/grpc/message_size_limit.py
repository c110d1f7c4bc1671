"""The limit on the size of a gRPC call's message, which is checked before it is decoded."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from runtime.errors import RequestTooLargeError


class MessageSizeLimit(grpc.aio.ServerInterceptor):
    """Refuses large messages: decoding one blocks the event loop, and all threads.

    gRPC's own limit is higher, because it applies to the mesh's messages too, and its error is not
    one of ours.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The call's own handler, with a decoder that raises `RequestTooLargeError`."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        decode = handler.request_deserializer

        def decode_small(data: bytes) -> Any:
            if len(data) > self._max_bytes:
                raise RequestTooLargeError(max_bytes=self._max_bytes)
            return decode(data)

        return handler._replace(request_deserializer=decode_small)
