"""Owns how our processes speak gRPC: channel options, dialling, listening, reading errors.

It never knows a service or a message. What a handler raises is turned into a status by
`runtime/rpc/error_interceptor.py`.
"""

import asyncio
import errno
import os
import re
import socket
from dataclasses import dataclass
from typing import Final, Protocol

import grpc
import grpc.aio

from runtime.addresses import split_address
from runtime.errors import EpochEndedError, PortTakenError
from runtime.rpc.call_metrics import CallCounter
from runtime.rpc.error_details import DETAILS_KEY, error_metadata
from runtime.rpc.error_interceptor import CODE_KEY, CallCheck, ErrorInterceptor

MAX_MESSAGE_BYTES: Final = 16 * 2**20

# What gRPC says of an address at which it found nobody; what TLS says is worth its length.
_TRIED: Final = re.compile(
    r"(failed to connect to all addresses|errors resolving)(?!.*handshake).*: (?P<reason>[\w ]+)\]?"
)

# A peer that is dead is noticed in their sum, also where nothing is sent; one that stands still for
# less than the second one is waited for.
_KEEPALIVE_MS: Final = 2_000
_KEEPALIVE_TIMEOUT_MS: Final = 7_000
# On a bulk connection an answer to a ping waits behind up to some 2 MiB that are on their way, and
# gRPC counts no bytes as life: links must bring these in this time. Who dials one asks on another
# connection whether the peer is there.
_BULK_TIMEOUT_MS: Final = 60_000

_Options = tuple[tuple[str, int], ...]


def _common_options(timeout_ms: int) -> _Options:
    """Both ends ping an idle connection, and agree that they may.

    A mismatch draws GOAWAY "too_many_pings". `http2.max_pings_without_data` 0 means no limit.
    """
    return (
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        # Where nothing else comes, gRPC 1.85 goes by this one, which is a minute by default.
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )


def _channel_options(timeout_ms: int) -> _Options:
    return (
        *_common_options(timeout_ms),
        # Else channels to one target share one connection, and with it one flow-control window.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    )


def _server_options(timeout_ms: int) -> _Options:
    return (
        *_common_options(timeout_ms),
        ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
        # Else a second server on a port that is taken would bind, and get half of the connections.
        ("grpc.so_reuseport", 0),
    )


CHANNEL_OPTIONS: Final = _channel_options(_KEEPALIVE_TIMEOUT_MS)
SERVER_OPTIONS: Final = _server_options(_KEEPALIVE_TIMEOUT_MS)


@dataclass(frozen=True, slots=True)
class ChannelTls:
    """How a channel is secured; `runtime/rpc/tls.py` makes it.

    `server_name` is the name that the server's certificate must have; empty: the address's host.
    """

    credentials: grpc.ChannelCredentials
    server_name: str = ""

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """What a channel needs besides."""
        return (("grpc.ssl_target_name_override", self.server_name),) if self.server_name else ()


class ServerTls(Protocol):
    """What a listener shows and demands; `runtime/rpc/tls.py` has them."""

    def server_credentials(self) -> grpc.ServerCredentials:
        """As gRPC takes them."""


def dial(address: str, tls: ChannelTls | None = None, *, is_bulk: bool = False) -> grpc.aio.Channel:
    """A channel to HOST:PORT, which connects at its first call; close it when done.

    One that `is_bulk` carries activations, however slowly.
    """
    options = _channel_options(_BULK_TIMEOUT_MS) if is_bulk else CHANNEL_OPTIONS
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.credentials, options=(*options, *tls.options))


def dial_blocking(address: str, tls: ChannelTls | None = None) -> grpc.Channel:
    """The same for programs without an event loop."""
    if tls is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    options = (*CHANNEL_OPTIONS, *tls.options)
    return grpc.secure_channel(address, tls.credentials, options=options)


def make_server(
    *interceptors: grpc.aio.ServerInterceptor,
    count_call: CallCounter | None = None,
    check: CallCheck | None = None,
    is_bulk: bool = False,
) -> grpc.aio.Server:
    """A server whose handlers may raise `StagemeshError`; services and `bind` come next.

    `check` raises what refuses a call, before its handler sees it. One that `is_bulk` is sent
    activations.
    """
    errors = ErrorInterceptor(count_call, check)
    options = _server_options(_BULK_TIMEOUT_MS) if is_bulk else SERVER_OPTIONS
    return grpc.aio.server(options=options, interceptors=(errors, *interceptors))


async def bind(server: grpc.aio.Server, address: str, tls: ServerTls | None = None) -> str:
    """Makes `server` listen on HOST:PORT, where port 0 picks a free one; returns HOST:PORT.

    Raises `PortTakenError` for an address that is in use or not this machine's.
    """
    # Bound and let go: unlike gRPC, the operating system says what is wrong.
    (await open_socket(address)).close()
    try:
        if tls is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, tls.server_credentials())
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


def error_from_rpc(exc: grpc.aio.AioRpcError | grpc.Call) -> tuple[str, str]:
    """Code and message of a failed call; from gRPC itself, the code is the status's name.

    Where nobody answered, the message is why, without how often and where gRPC has tried.
    """
    metadata = exc.trailing_metadata() or ()
    code = next((str(value) for key, value in metadata if key == CODE_KEY), None)
    details = exc.details() or exc.code().name
    tried = _TRIED.fullmatch(details)
    return code or exc.code().name.lower(), tried["reason"] if tried else details


def details_from_rpc(exc: grpc.aio.AioRpcError | grpc.Call) -> bytes:
    """The `google.rpc.Status` of a failed call, serialized; empty where there is none."""
    return bytes(dict(exc.trailing_metadata() or ()).get(DETAILS_KEY, b""))


def epoch_error_from_rpc(exc: grpc.aio.AioRpcError, who: str) -> EpochEndedError:
    """What the failed call to `who` says of the end of its epoch: the first cause, told once."""
    code, message = error_from_rpc(exc)
    trailer = dict(exc.trailing_metadata() or ())
    if exc.code() is grpc.StatusCode.INTERNAL and CODE_KEY not in trailer:
        # A write that is under way as the peer ends the call hides the peer's status.
        code = "stream_closed"
    if code != EpochEndedError.code:
        return EpochEndedError(cause=code, detail=f"{who}: {message}")
    cause = error_metadata(details_from_rpc(exc)).get("cause", code)
    opening = str(EpochEndedError(cause=cause, detail=""))
    return EpochEndedError(cause=cause, detail=f"{who}: {message.removeprefix(opening)}")
