"""Owns how our processes speak gRPC: channel options, listening, serving and errors on the wire.

It never knows a service or a message. A handler raises a `StagemeshError` (alone or in a
TaskGroup's exception group) and `ErrorInterceptor` turns it into a status; anything else that
escapes a handler is logged here and reaches the client as INTERNAL.
"""

import asyncio
import errno
import os
import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from inspect import isasyncgenfunction
from typing import Any, Final, Never

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from runtime.call_metrics import CallCounter, Context
from runtime.errors import (
    EpochEndedError,
    InvalidRequestError,
    PortTakenError,
    StagemeshError,
    find_error,
)
from runtime.logs import get_logger
from runtime.rich_errors import DETAILS_KEY, error_metadata, error_status, short_message

MAX_MESSAGE_BYTES: Final = 16 * 2**20
CODE_KEY: Final = "stagemesh-code"

# A name or an address: nothing that gRPC would take for a scheme, such as unix:PATH.
_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[\w.-]+", re.ASCII)
_PORT: Final = re.compile(r"[0-9]{1,5}")

_KEEPALIVE_MS: Final = 10_000
_KEEPALIVE_TIMEOUT_MS: Final = 5_000

# Both ends ping an idle connection, and agree that they may: a mismatch draws GOAWAY
# "too_many_pings". `http2.max_pings_without_data` 0 means no limit.
_COMMON_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

CHANNEL_OPTIONS: Final = (
    *_COMMON_OPTIONS,
    # Else channels to one target share one connection, and with it one flow-control window.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

SERVER_OPTIONS: Final = (
    *_COMMON_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    # Else a second server on a port that is taken would bind, and get half of the connections.
    ("grpc.so_reuseport", 0),
)

_log = get_logger()


def dial(address: str) -> grpc.aio.Channel:
    """A channel to HOST:PORT, which connects at its first call; close it when done."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def make_server(
    *interceptors: grpc.aio.ServerInterceptor, count_call: CallCounter | None = None
) -> grpc.aio.Server:
    """A server whose handlers may raise `StagemeshError`; services and `bind` come next."""
    errors = ErrorInterceptor(count_call or _count_nothing)
    return grpc.aio.server(options=SERVER_OPTIONS, interceptors=(errors, *interceptors))


def _count_nothing(method: str, context: Context) -> AbstractContextManager[None]:
    return nullcontext()


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, `[HOST]:PORT` for IPv6; raises `InvalidRequestError`."""
    host, _, port = address.rpartition(":")
    if not (_HOST.fullmatch(host) and _PORT.fullmatch(port) and int(port) < 2**16):
        raise InvalidRequestError(
            field="address", problem=f"{address!r} is not HOST:PORT, such as 127.0.0.1:50050"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


async def bind(server: grpc.aio.Server, address: str) -> str:
    """Makes `server` listen on HOST:PORT, where port 0 picks a free one; returns HOST:PORT.

    Raises `PortTakenError` for an address that is in use or not this machine's.
    """
    # Bound and let go: unlike gRPC, the operating system says what is wrong.
    (await open_socket(address)).close()
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as exc:
        raise PortTakenError(address=address) from exc
    return f"{address.rpartition(':')[0]}:{bound}"


async def open_socket(address: str) -> socket.socket:
    """A TCP socket bound to HOST:PORT, not yet listening; raises what `bind` raises."""
    host, port = split_address(address)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, sockaddr = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(sockaddr)
        except OSError:
            bound.close()
            raise
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise PortTakenError(address=address) from exc
        problem = exc.strerror or os.strerror(exc.errno or errno.EINVAL)
        raise PortTakenError(address=address, problem=f"{problem}; choose another") from exc
    return bound


async def abort(context: Context, error: StagemeshError) -> Never:
    """Ends a call with the error's status and message; the trailing metadata says the rest.

    That is its code, and a `google.rpc.Status` for whoever reads those.
    """
    message = short_message(error)
    await context.abort(
        grpc.StatusCode[error.grpc_status],
        message,
        trailing_metadata=((CODE_KEY, error.code), (DETAILS_KEY, error_status(error, message))),
    )


def error_from_rpc(exc: grpc.aio.AioRpcError) -> tuple[str, str]:
    """Code and message of a failed call; from gRPC itself, the code is the status's name."""
    metadata = exc.trailing_metadata() or ()
    code = next((str(value) for key, value in metadata if key == CODE_KEY), None)
    return code or exc.code().name.lower(), exc.details() or exc.code().name


def epoch_end_from_rpc(exc: grpc.aio.AioRpcError, who: str) -> EpochEndedError:
    """What the failed call to `who` says of the end of its epoch: the first cause, told once."""
    code, message = error_from_rpc(exc)
    if code != EpochEndedError.code:
        return EpochEndedError(cause=code, detail=f"{who}: {message}")
    trailer = dict(exc.trailing_metadata() or ())
    cause = error_metadata(bytes(trailer.get(DETAILS_KEY, b""))).get("cause", code)
    opening = str(EpochEndedError(cause=cause, detail=""))
    return EpochEndedError(cause=cause, detail=f"{who}: {message.removeprefix(opening)}")


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends a call whose handler raised with the status that fits, and logs what it cannot name.

    A handler that yields its responses is closed before the call ends, also when the client went
    away, so that its `finally` runs then and not when it is collected.
    """

    def __init__(self, count_call: CallCounter) -> None:
        self._count_call = count_call

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps the handler that gRPC found for the call, if any."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return _guard(handler, handler_call_details.method, self._count_call)


def _guard(handler: Any, method: str, count_call: CallCounter) -> Any:
    behaviour = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    writes = isasyncgenfunction(behaviour)

    async def guarded(request: Any, context: Context) -> Any:
        with count_call(method, context):
            return await answer(request, context)

    async def answer(request: Any, context: Context) -> Any:
        try:
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
            # A write that a deadline cut short is still under way, and so no status can be sent;
            # the peer, whose deadline it is, needs none.
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


def _keeping_errors(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Hands why a request cannot be read to the handler, where else gRPC logs a traceback."""
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
        # Writing to a peer that left fails too, and is no fault of ours.
        is_peers = context.done() or _holds(exc, grpc.aio.InternalError)
        log = _log.info if is_peers else _log.error
        log("rpc_failed", method=method, exc_info=exc)
        await context.abort(
            grpc.StatusCode.INTERNAL,
            "internal error; the server's log says more",
            trailing_metadata=((CODE_KEY, StagemeshError.code),),
        )
    _log.info("rpc_refused", method=method, code=error.code, message=short_message(error))
    await abort(context, error)


def _undecodable(exc: Exception) -> StagemeshError | None:
    if not _holds(exc, DecodeError):
        return None
    return InvalidRequestError(field="message", problem="it is not what this method takes")


def _holds(exc: Exception, kind: type[Exception]) -> bool:
    """Whether it is, or groups, an error of that kind."""
    if isinstance(exc, ExceptionGroup):
        return exc.subgroup(kind) is not None
    return isinstance(exc, kind)
