"""gRPC channels and servers: options, dialling, listening, parsing errors.

Independent of services and messages. `runtime/rpc/error_interceptor.py` converts what a handler
raises to a status.
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

# gRPC's text for an address without a listener; TLS's texts are kept, since they state the reason.
_TRIED: Final = re.compile(
    r"(failed to connect to all addresses|errors resolving)(?!.*handshake).*: (?P<reason>[\w ]+)\]?"
)

# A dead peer is detected within their sum, also on an idle connection; a peer that hangs for less
# than the second is tolerated.
_KEEPALIVE_MS: Final = 2_000
_KEEPALIVE_TIMEOUT_MS: Final = 7_000
# On a bulk connection the response to a ping waits behind up to 2 MiB in transit, and gRPC does not
# count received bytes as a sign of life: links must transfer these within this time. The sender
# checks its peer on a separate connection.
_BULK_TIMEOUT_MS: Final = 60_000

_Options = tuple[tuple[str, int], ...]


def _common_options(timeout_ms: int) -> _Options:
    """Keepalive options: both ends ping an idle connection, and permit pings.

    A mismatch draws GOAWAY "too_many_pings". `http2.max_pings_without_data` 0 means no limit.
    """
    return (
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        # gRPC 1.85 uses this one on an idle connection; its default is a minute.
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )


def _channel_options(timeout_ms: int) -> _Options:
    return (
        *_common_options(timeout_ms),
        # Otherwise channels to one target share a connection and its flow-control window.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    )


def _server_options(timeout_ms: int) -> _Options:
    return (
        *_common_options(timeout_ms),
        ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
        # Otherwise a second server could bind a port in use, and would get half of the connections.
        ("grpc.so_reuseport", 0),
    )


CHANNEL_OPTIONS: Final = _channel_options(_KEEPALIVE_TIMEOUT_MS)
SERVER_OPTIONS: Final = _server_options(_KEEPALIVE_TIMEOUT_MS)


@dataclass(frozen=True, slots=True)
class ChannelTls:
    """The security of a channel; `runtime/rpc/tls.py` makes it.

    `server_name` is the required name in the server's certificate; empty: the address's host.
    """

    credentials: grpc.ChannelCredentials
    server_name: str = ""

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """The channel options for `server_name`."""
        return (("grpc.ssl_target_name_override", self.server_name),) if self.server_name else ()


class ServerTls(Protocol):
    """The certificate of a listener, and whether it requires one; `runtime/rpc/tls.py` has them."""

    def server_credentials(self) -> grpc.ServerCredentials:
        """The gRPC credentials."""


def dial(address: str, tls: ChannelTls | None = None, *, is_bulk: bool = False) -> grpc.aio.Channel:
    """A channel to HOST:PORT, which connects at its first call; close it when done.

    With `is_bulk` it carries activations, and tolerates slow links.
    """
    options = _channel_options(_BULK_TIMEOUT_MS) if is_bulk else CHANNEL_OPTIONS
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.credentials, options=(*options, *tls.options))


def dial_blocking(address: str, tls: ChannelTls | None = None) -> grpc.Channel:
    """Makes a channel for programs without an event loop."""
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
    """Makes a server whose handlers may raise `StagemeshError`; add services, then `bind`.

    `check` raises what refuses a call, before its handler sees it. One that `is_bulk` is sent
    activations.
    """
    errors = ErrorInterceptor(count_call, check)
    options = _server_options(_BULK_TIMEOUT_MS) if is_bulk else SERVER_OPTIONS
    return grpc.aio.server(options=options, interceptors=(errors, *interceptors))


async def bind(server: grpc.aio.Server, address: str, tls: ServerTls | None = None) -> str:
    """Makes `server` listen on HOST:PORT, where port 0 selects a free one; returns HOST:PORT.

    Raises `PortTakenError` for an address that is in use or not this machine's.
    """
    # Bound and released first: unlike gRPC, the operating system reports the reason of a failure.
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

    If no server responded, the message is the reason, without gRPC's attempts and addresses.
    """
    metadata = exc.trailing_metadata() or ()
    code = next((str(value) for key, value in metadata if key == CODE_KEY), None)
    details = exc.details() or exc.code().name
    tried = _TRIED.fullmatch(details)
    return code or exc.code().name.lower(), tried["reason"] if tried else details


def details_from_rpc(exc: grpc.aio.AioRpcError | grpc.Call) -> bytes:
    """The serialized `google.rpc.Status` of a failed call; empty if absent."""
    return bytes(dict(exc.trailing_metadata() or ()).get(DETAILS_KEY, b""))


def epoch_error_from_rpc(exc: grpc.aio.AioRpcError, peer: str) -> EpochEndedError:
    """Converts a failed call to `peer` to the error that ended its epoch: the first cause, once."""
    code, message = error_from_rpc(exc)
    trailer = dict(exc.trailing_metadata() or ())
    if exc.code() is grpc.StatusCode.INTERNAL and CODE_KEY not in trailer:
        # A pending write hides the status with which the peer ends the call.
        code = "stream_closed"
    if code != EpochEndedError.code:
        return EpochEndedError(cause=code, detail=f"{peer}: {message}")
    cause = error_metadata(details_from_rpc(exc)).get("cause", code)
    opening = str(EpochEndedError(cause=cause, detail=""))
    return EpochEndedError(cause=cause, detail=f"{peer}: {message.removeprefix(opening)}")
