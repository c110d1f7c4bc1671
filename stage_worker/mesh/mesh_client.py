"""Keeps this worker joined: dials the coordinator, sends the hello and heartbeats.

A coordinator that is absent is dialled again until the process ends. Membership ends with a
refusal or a release: a stopping worker sends `Leaving` and stays until the coordinator releases it.
The loaded weights and the epoch are unaffected; epochs end with their own streams.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Never

import grpc
import grpc.aio

from protos import mesh_pb2, mesh_pb2_grpc
from runtime.backoff import Backoff
from runtime.errors import WorkerRefusedError
from runtime.host.logs import get_logger
from runtime.host.tasks import run_in_child_task
from runtime.rpc import channels
from runtime.rpc.tls import MeshTls, Role
from runtime.rpc.wrong_endpoint import WrongEndpoint, find_wrong_endpoint

# With jitter, so that the workers of a restarted coordinator do not all join at once.
_BACKOFF = Backoff(first_seconds=0.1, max_seconds=5.0)
_WELCOME_SECONDS = 10.0
# Missed heartbeats after which the coordinator counts as lost.
_NUM_MISSED = 5
_MIN_HEARTBEAT_SECONDS, _MAX_HEARTBEAT_SECONDS = 0.05, 60.0
# Another attempt would get the same response.
_REFUSALS = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
}

_MESH_HINT = "give the coordinator's --mesh address, whose port is 50051 by default"
_WRONG_ENDPOINT_HINTS = {
    WrongEndpoint.HTTP: _MESH_HINT,
    WrongEndpoint.OTHER_SERVICE: _MESH_HINT,
    WrongEndpoint.NO_TLS: "start the coordinator with --tls-dir, too, or this worker without",
    WrongEndpoint.HANGS_UP: (
        "give --tls-dir here if the coordinator has it, or else look at its log"
    ),
}

_JoinCall = grpc.aio.StreamStreamCall[mesh_pb2.WorkerMessage, mesh_pb2.CoordinatorMessage]
_log = get_logger()


class _MembershipLostError(Exception):
    """Raised when a Join stream ended for a temporary reason."""


class _ReleasedError(Exception):
    """Raised when the coordinator has released this worker."""


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """Asks for the worker to leave once `requested` is set, within `grace_seconds`."""

    requested: asyncio.Event
    grace_seconds: float


async def maintain_membership(
    coordinator: str,
    make_hello: Callable[[], Awaitable[mesh_pb2.Hello]],
    set_joined: Callable[[bool], Awaitable[None]],
    leave_request: LeaveRequest,
    make_heartbeat: Callable[[], mesh_pb2.Heartbeat] = mesh_pb2.Heartbeat,
    mesh_tls: MeshTls | None = None,
) -> None:
    """Stays joined until released; raises WorkerRefusedError if the coordinator refuses.

    After a leave request it also returns when the membership is lost. Each attempt makes a new
    hello, because a host's addresses change; if that raises OSError, for example because the
    coordinator's name does not resolve yet, the attempt has failed. `set_joined` is called at each
    change of the membership.
    """
    attempts = _JoinAttempts(coordinator, random.Random())

    async def on_joined() -> None:
        attempts.reset()
        await set_joined(True)

    is_released = False
    while True:
        reason = ""
        try:
            hello = await make_hello()
            await run_in_child_task(
                _join_once(coordinator, hello, on_joined, leave_request, make_heartbeat, mesh_tls)
            )
        except* _ReleasedError:
            is_released = True
        except* (_MembershipLostError, OSError) as lost:
            reason = str(lost.exceptions[0])
        await set_joined(False)
        if is_released or leave_request.requested.is_set():
            _log.info("left", coordinator=coordinator, is_released=is_released)
            return
        await attempts.pause_after(reason)


class _JoinAttempts:
    """The failed attempts to join since the worker was last joined."""

    def __init__(self, coordinator: str, jitter: random.Random) -> None:
        self._coordinator = coordinator
        self._jitter = jitter
        self.reset()

    def reset(self) -> None:
        """Called on joining: the next loss is logged and retried at once."""
        self._num_failures = 0
        self._logged_reason: str | None = None

    async def pause_after(self, reason: str) -> None:
        """Logs why an attempt failed, unless the reason is unchanged, and waits for the next."""
        if reason != self._logged_reason:
            self._logged_reason = reason
            _log.info("not_joined", coordinator=self._coordinator, reason=reason)
        pause_seconds = _BACKOFF.pause_seconds(self._num_failures, self._jitter)
        self._num_failures += 1
        await asyncio.sleep(pause_seconds)


async def _join_once(
    coordinator: str,
    hello: mesh_pb2.Hello,
    on_joined: Callable[[], Awaitable[None]],
    leave_request: LeaveRequest,
    make_heartbeat: Callable[[], mesh_pb2.Heartbeat],
    mesh_tls: MeshTls | None,
) -> Never:
    async with _join_stream(coordinator, hello, mesh_tls) as (call, heartbeat_seconds):
        _log.info("joined", coordinator=coordinator, address=hello.address)
        await on_joined()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                _send_heartbeats(call, heartbeat_seconds, leave_request, make_heartbeat)
            )
            await _receive_messages(call, _NUM_MISSED * heartbeat_seconds)


@asynccontextmanager
async def _join_stream(
    coordinator: str, hello: mesh_pb2.Hello, mesh_tls: MeshTls | None
) -> AsyncIterator[tuple[_JoinCall, float]]:
    """A Join stream after its welcome, and the heartbeat interval that the welcome asks for."""
    tls = None if mesh_tls is None else mesh_tls.credentials_for(Role.COORDINATOR)
    async with channels.dial(coordinator, tls) as channel:
        call: _JoinCall = mesh_pb2_grpc.MeshStub(channel).Join()
        try:
            with suppress(_MembershipLostError):  # the read raises the reason of a failed write
                await _write(call, mesh_pb2.WorkerMessage(hello=hello))
            answer = await _read(call, _WELCOME_SECONDS)
            if answer.HasField("refusal"):
                raise WorkerRefusedError(worker=hello.address, reason=answer.refusal.reason)
            if not answer.HasField("welcome"):
                raise _MembershipLostError("the coordinator's first message was no welcome")
            # In this order, NaN becomes the minimum.
            requested = max(_MIN_HEARTBEAT_SECONDS, answer.welcome.heartbeat_seconds)
            yield call, min(_MAX_HEARTBEAT_SECONDS, requested)
        finally:
            call.cancel()


async def _receive_messages(call: _JoinCall, timeout_seconds: float) -> Never:
    while True:
        message = await _read(call, timeout_seconds)
        if message.HasField("released"):
            raise _ReleasedError


async def _send_heartbeats(
    call: _JoinCall,
    heartbeat_seconds: float,
    leave_request: LeaveRequest,
    make_heartbeat: Callable[[], mesh_pb2.Heartbeat],
) -> Never:
    """Sends heartbeats and, once it is requested, `Leaving`."""
    has_requested = False
    while True:
        if leave_request.requested.is_set() and not has_requested:
            has_requested = True
            leaving = mesh_pb2.Leaving(grace_seconds=leave_request.grace_seconds)
            await _write(call, mesh_pb2.WorkerMessage(leaving=leaving))
        with suppress(TimeoutError):
            async with asyncio.timeout(heartbeat_seconds):
                await (asyncio.Event() if has_requested else leave_request.requested).wait()
                continue
        await _write(call, mesh_pb2.WorkerMessage(heartbeat=make_heartbeat()))


async def _write(call: _JoinCall, message: mesh_pb2.WorkerMessage) -> None:
    try:
        await call.write(message)
    except asyncio.InvalidStateError:
        raise _MembershipLostError("the coordinator closed the stream") from None
    except grpc.aio.AioRpcError as error:
        raise _lost(error) from None


async def _read(call: _JoinCall, timeout_seconds: float) -> mesh_pb2.CoordinatorMessage:
    try:
        async with asyncio.timeout(timeout_seconds):
            message = await call.read()
    except TimeoutError:
        silence = f"the coordinator was silent for {timeout_seconds:.1f} s"
        raise _MembershipLostError(silence) from None
    except grpc.aio.AioRpcError as error:
        raise _lost(error) from None
    if not isinstance(message, mesh_pb2.CoordinatorMessage):
        raise _MembershipLostError("the coordinator closed the stream")
    return message


def _lost(error: grpc.aio.AioRpcError) -> Exception:
    """The error of a broken stream: a refusal if another attempt would get the same response."""
    _, reason = channels.error_from_rpc(error)
    wrong_endpoint = find_wrong_endpoint(error)
    if wrong_endpoint is not None:
        hint = _WRONG_ENDPOINT_HINTS[wrong_endpoint]
        reason = f"what answers at --coordinator {wrong_endpoint.value}; {hint}"
    if error.code() in _REFUSALS or wrong_endpoint is WrongEndpoint.HTTP:
        return WorkerRefusedError(worker="this process", reason=reason)
    return _MembershipLostError(reason)
