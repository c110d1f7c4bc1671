"""Converts a handler's error to a gRPC status, a message and details.

A handler raises a `StagemeshError` (alone or in a TaskGroup's exception group) and
`ErrorInterceptor` turns it into a status; anything else that escapes a handler is logged here and
reaches the client as INTERNAL. It never knows a service or a message.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from inspect import isasyncgenfunction
from typing import Any, Final, Never, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from runtime.errors import InvalidRequestError, StagemeshError, find_error
from runtime.host.logs import get_logger
from runtime.rpc.call_metrics import CallCounter, Context
from runtime.rpc.error_details import DETAILS_KEY, error_status, short_message

CODE_KEY: Final = "stagemesh-code"

CallCheck: TypeAlias = Callable[[str, Context], None]

_log = get_logger()


async def abort(context: Context, error: StagemeshError) -> Never:
    """Ends a call with the error's status and message.

    The trailing metadata has its code and a `google.rpc.Status`.
    """
    message = short_message(error)
    await context.abort(
        grpc.StatusCode[error.grpc_status],
        message,
        trailing_metadata=((CODE_KEY, error.code), (DETAILS_KEY, error_status(error, message))),
    )


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends a call whose handler raised with the matching status; logs unexpected errors.

    A handler that yields its responses is closed before the call ends, also when the client went
    away, so that its `finally` runs then and not when it is collected.
    """

    def __init__(
        self, count_call: CallCounter | None = None, check: CallCheck | None = None
    ) -> None:
        """`count_call` spans every call; `check` runs before each handler, and may raise."""
        self._count_call = count_call or _count_nothing
        self._check = check

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps the handler of the call, if there is one."""
        handler = await continuation(handler_call_details)
        return (
            None
            if handler is None
            else _guard(handler, handler_call_details.method, self._count_call, self._check)
        )


def _guard(handler: Any, method: str, count_call: CallCounter, check: CallCheck | None) -> Any:
    behaviour = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    writes = isasyncgenfunction(behaviour)

    async def guarded(request: Any, context: Context) -> Any:
        with count_call(method, context):
            return await answer(request, context)

    async def answer(request: Any, context: Context) -> Any:
        try:
            if check is not None:
                check(method, context)
            if isinstance(request, DecodeError | StagemeshError):
                raise request
            if not writes:
                return await behaviour(request, context)
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    await context.write(response)
        except grpc.aio.AbortError:
            raise
        except Exception as exc:  # noqa: BLE001 - the RPC boundary
            # A write that a deadline interrupted is still pending, so no status can be sent; the
            # peer, which set the deadline, needs none.
            with suppress(grpc.aio.InternalError):
                await _abort_with(context, exc, method)

    kind = (
        f"{'stream' if handler.request_streaming else 'unary'}"
        f"_{'stream' if handler.response_streaming else 'unary'}_rpc_method_handler"
    )
    make_handler = getattr(grpc, kind)
    deserializer = handler.request_deserializer
    if not handler.request_streaming:
        deserializer = _keeping_errors(deserializer)
    return make_handler(guarded, deserializer, handler.response_serializer)


def _count_nothing(method: str, context: Context) -> AbstractContextManager[None]:
    return nullcontext()


def _keeping_errors(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Passes a parse error to the handler; otherwise gRPC logs a traceback."""
    if deserialize is None:
        return None

    def keep(data: bytes) -> Any:
        try:
            return deserialize(data)
        except (DecodeError, StagemeshError) as error:
            return error

    return keep


async def _abort_with(context: Context, exc: Exception, method: str) -> Never:
    error = find_error(exc) or _undecodable(exc)
    if error is None:
        # A write to a peer that has disconnected fails, too, and is not an internal error.
        is_peers = context.done() or _holds(exc, grpc.aio.InternalError)
        log = _log.info if is_peers else _log.error
        log("rpc_failed", method=method, exc_info=exc)
        await context.abort(
            grpc.StatusCode.INTERNAL,
            "internal error; the server's log has the details",
            trailing_metadata=((CODE_KEY, StagemeshError.code),),
        )
    _log.info("rpc_refused", method=method, code=error.code, message=short_message(error))
    await abort(context, error)


def _undecodable(exc: Exception) -> StagemeshError | None:
    if not _holds(exc, DecodeError):
        return None
    return InvalidRequestError(field="message", problem="it is not what this method takes")


def _holds(exc: Exception, kind: type[Exception]) -> bool:
    """Whether it is, or contains, an error of that class."""
    if isinstance(exc, ExceptionGroup):
        return exc.subgroup(kind) is not None
    return isinstance(exc, kind)
