"""Keeps this worker in the mesh: dials the coordinator, says hello, exchanges heartbeats.

A coordinator that is not there yet, or went away, is dialled again for as long as the process
lives. Only a refusal ends it, or its release: a worker that is to stop says so and stays until the
coordinator can do without it. Nothing here touches what the worker holds: epochs end with their own
streams.
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
# Heartbeats that may be missed before the coordinator counts as gone.
_NUM_MISSED = 5
_MIN_HEARTBEAT_SECONDS, _MAX_HEARTBEAT_SECONDS = 0.05, 60.0
# Asking again would be answered the same.
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
    """Raised when a Join stream ended for a reason that may pass."""


class _ReleasedError(Exception):
    """Raised when the coordinator lets this worker go."""


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """That the worker is to leave, once `asked` is set, and how long it waits to be released."""

    asked: asyncio.Event
    grace_seconds: float


async def maintain_membership(
    coordinator: str,
    make_hello: Callable[[], Awaitable[mesh_pb2.Hello]],
    set_joined: Callable[[bool], Awaitable[None]],
    departure: LeaveRequest,
    make_heartbeat: Callable[[], mesh_pb2.Heartbeat] = mesh_pb2.Heartbeat,
    mesh_tls: MeshTls | None = None,
) -> None:
    """Be a member until released; raises WorkerRefusedError when the coordinator refuses.

    With a departure asked for, it also returns when the worker is no member any more.

    Hello is made anew for each try, because a host's addresses change; an OSError of it, as when
    the coordinator's name is not known yet, is a failed try. `set_joined` is told when the worker
    came in and when it is out.
    """
    tries = _Tries(coordinator, random.Random())

    async def joined() -> None:
        tries.start_over()
        await set_joined(True)

    is_released = False
    while True:
        reason = ""
        try:
            hello = await make_hello()
            await run_in_child_task(
                _be_member(coordinator, hello, joined, departure, make_heartbeat, mesh_tls)
            )
        except* _ReleasedError:
            is_released = True
        except* (_MembershipLostError, OSError) as lost:
            reason = str(lost.exceptions[0])
        await set_joined(False)
        if is_released or departure.asked.is_set():
            _log.info("left", coordinator=coordinator, is_released=is_released)
            return
        await tries.pause_after(reason)


class _Tries:
    """The tries to come in, since this worker was last a member."""

    def __init__(self, coordinator: str, jitter: random.Random) -> None:
        self._coordinator = coordinator
        self._jitter = jitter
        self.start_over()

    def start_over(self) -> None:
        """It came in: the next loss is news again, and is answered at once."""
        self._num_failures = 0
        self._said: str | None = None

    async def pause_after(self, reason: str) -> None:
        """Says why a try failed, once however often it is the same, and waits for the next."""
        if reason != self._said:
            self._said = reason
            _log.info("not_joined", coordinator=self._coordinator, reason=reason)
        pause_seconds = _BACKOFF.pause_seconds(self._num_failures, self._jitter)
        self._num_failures += 1
        await asyncio.sleep(pause_seconds)


async def _be_member(
    coordinator: str,
    hello: mesh_pb2.Hello,
    joined: Callable[[], Awaitable[None]],
    departure: LeaveRequest,
    make_heartbeat: Callable[[], mesh_pb2.Heartbeat],
    mesh_tls: MeshTls | None,
) -> Never:
    async with _membership(coordinator, hello, mesh_tls) as (call, heartbeat_seconds):
        _log.info("joined", coordinator=coordinator, address=hello.address)
        await joined()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_speak(call, heartbeat_seconds, departure, make_heartbeat))
            await _listen(call, _NUM_MISSED * heartbeat_seconds)


@asynccontextmanager
async def _membership(
    coordinator: str, hello: mesh_pb2.Hello, mesh_tls: MeshTls | None
) -> AsyncIterator[tuple[_JoinCall, float]]:
    """A Join stream past its welcome, with the seconds between heartbeats that it asked for."""
    tls = None if mesh_tls is None else mesh_tls.credentials_for(Role.COORDINATOR)
    async with channels.dial(coordinator, tls) as channel:
        call: _JoinCall = mesh_pb2_grpc.MeshStub(channel).Join()
        try:
            with suppress(_MembershipLostError):  # reading says why, a write that fails does not
                await _write(call, mesh_pb2.WorkerMessage(hello=hello))
            answer = await _read(call, _WELCOME_SECONDS)
            if answer.HasField("refusal"):
                raise WorkerRefusedError(worker=hello.address, reason=answer.refusal.reason)
            if not answer.HasField("welcome"):
                raise _MembershipLostError("the coordinator's first message was no welcome")
            # In this order, what is not a number becomes the minimum.
            asked = max(_MIN_HEARTBEAT_SECONDS, answer.welcome.heartbeat_seconds)
            yield call, min(_MAX_HEARTBEAT_SECONDS, asked)
        finally:
            call.cancel()


async def _listen(call: _JoinCall, patience_seconds: float) -> Never:
    while True:
        message = await _read(call, patience_seconds)
        if message.HasField("released"):
            raise _ReleasedError


async def _speak(
    call: _JoinCall,
    heartbeat_seconds: float,
    departure: LeaveRequest,
    make_heartbeat: Callable[[], mesh_pb2.Heartbeat],
) -> Never:
    """Heartbeats, and once, as soon as it is so, that this worker is to leave."""
    has_said = False
    while True:
        if departure.asked.is_set() and not has_said:
            has_said = True
            leaving = mesh_pb2.Leaving(grace_seconds=departure.grace_seconds)
            await _write(call, mesh_pb2.WorkerMessage(leaving=leaving))
        with suppress(TimeoutError):
            async with asyncio.timeout(heartbeat_seconds):
                await (asyncio.Event() if has_said else departure.asked).wait()
                continue
        await _write(call, mesh_pb2.WorkerMessage(heartbeat=make_heartbeat()))


async def _write(call: _JoinCall, message: mesh_pb2.WorkerMessage) -> None:
    try:
        await call.write(message)
    except asyncio.InvalidStateError:
        raise _MembershipLostError("the coordinator closed the stream") from None
    except grpc.aio.AioRpcError as error:
        raise _lost(error) from None


async def _read(call: _JoinCall, patience_seconds: float) -> mesh_pb2.CoordinatorMessage:
    try:
        async with asyncio.timeout(patience_seconds):
            message = await call.read()
    except TimeoutError:
        silence = f"the coordinator was silent for {patience_seconds:.1f} s"
        raise _MembershipLostError(silence) from None
    except grpc.aio.AioRpcError as error:
        raise _lost(error) from None
    if not isinstance(message, mesh_pb2.CoordinatorMessage):
        raise _MembershipLostError("the coordinator closed the stream")
    return message


def _lost(error: grpc.aio.AioRpcError) -> Exception:
    """What a broken stream means: a refusal if asking again would be answered the same."""
    _, reason = channels.error_from_rpc(error)
    wrong_endpoint = find_wrong_endpoint(error)
    if wrong_endpoint is not None:
        hint = _WRONG_ENDPOINT_HINTS[wrong_endpoint]
        reason = f"what answers at --coordinator {wrong_endpoint.value}; {hint}"
    if error.code() in _REFUSALS or wrong_endpoint is WrongEndpoint.HTTP:
        return WorkerRefusedError(worker="this process", reason=reason)
    return _MembershipLostError(reason)
