"""Membership from the worker's side, against a coordinator that the test plays."""

import asyncio
import itertools
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from protos import mesh_pb2, mesh_pb2_grpc
from runtime import rpc
from runtime.errors import ProtocolVersionError, WorkerRefusedError, find_error
from stage_worker import join
from stage_worker.join import Departure, retry_delays, stay_joined

Context = grpc.aio.ServicerContext[mesh_pb2.WorkerMessage, mesh_pb2.CoordinatorMessage]
HELLO = mesh_pb2.Hello(worker_id="w", address="127.0.0.1:9")
WAIT_SECONDS = 10.0


class _Mesh(mesh_pb2_grpc.MeshServicer):
    """Does what the test says with each Join stream, after its hello."""

    def __init__(self, behaviour: Callable[[Context], Awaitable[None]]) -> None:
        self.hellos: asyncio.Queue[mesh_pb2.Hello] = asyncio.Queue()
        self._behaviour = behaviour

    async def Join(self, _: Any, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        message = await context.read()
        assert isinstance(message, mesh_pb2.WorkerMessage)
        self.hellos.put_nowait(message.hello)
        await self._behaviour(context)


@asynccontextmanager
async def _serving(mesh: _Mesh, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    server = rpc.make_server()
    mesh_pb2_grpc.add_MeshServicer_to_server(mesh, server)
    bound = await rpc.bind(server, address)
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(grace=None)


async def _hello() -> mesh_pb2.Hello:
    return HELLO


def _never() -> Departure:
    """Nobody asks it to leave."""
    return Departure(asyncio.Event(), grace_seconds=1.0)


async def _note_nothing(is_joined: bool) -> None:
    pass


@asynccontextmanager
async def _joining(
    address: str, make_hello: Callable[[], Awaitable[mesh_pb2.Hello]] = _hello
) -> AsyncIterator[asyncio.Queue[bool]]:
    """Stays joined; yields what it tells about that."""
    told: asyncio.Queue[bool] = asyncio.Queue()
    task = asyncio.create_task(stay_joined(address, make_hello, told.put, _never()))
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            yield told
    finally:
        task.cancel()
        await asyncio.wait((task,))
    assert task.cancelled(), "membership ended by itself"


async def _welcome(context: Context, heartbeat_seconds: float = 0.05) -> None:
    welcome = mesh_pb2.Welcome(coordinator_id="c", heartbeat_seconds=heartbeat_seconds)
    await context.write(mesh_pb2.CoordinatorMessage(welcome=welcome))


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "_FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(join, "_MAX_DELAY_SECONDS", 0.05)


async def test_stay_joined_refused_in_the_same_words_over_and_over_logs_them_once() -> None:
    reasons = iter(["full", "full", "full", "closing", "closing"])

    async def behaviour(context: Context) -> None:
        if (reason := next(reasons, None)) is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        await _welcome(context)
        await asyncio.Event().wait()

    with capture_logs() as logs:
        async with _serving(_Mesh(behaviour)) as address, _joining(address) as told:
            while not await told.get():
                pass
    assert [log["reason"] for log in logs if log["event"] == "not_joined"] == ["full", "closing"]


async def test_stay_joined_welcomed_sends_heartbeats() -> None:
    beaten = asyncio.Event()

    async def behaviour(context: Context) -> None:
        await _welcome(context)
        for _ in range(3):
            message = await context.read()
            assert isinstance(message, mesh_pb2.WorkerMessage)
            assert message.HasField("heartbeat")
            await context.write(mesh_pb2.CoordinatorMessage(heartbeat=mesh_pb2.Heartbeat()))
        beaten.set()
        await context.read()

    mesh = _Mesh(behaviour)
    async with _serving(mesh) as address, _joining(address):
        await beaten.wait()
        assert mesh.hellos.get_nowait() == HELLO


async def test_stay_joined_coordinator_comes_later_and_again_joins_each_time() -> None:
    async def behaviour(context: Context) -> None:
        await _welcome(context)
        await context.read()

    first, second = _Mesh(behaviour), _Mesh(behaviour)
    async with _serving(_Mesh(behaviour)) as address:
        pass  # only to learn a free port
    async with _joining(address):
        async with _serving(first, address):
            assert await first.hellos.get() == HELLO
        async with _serving(second, address):
            assert await second.hellos.get() == HELLO


async def test_stay_joined_name_not_known_yet_tries_again_with_a_new_hello() -> None:
    num_tries = 0

    async def hello_at_second_try() -> mesh_pb2.Hello:
        nonlocal num_tries
        num_tries += 1
        if num_tries == 1:
            raise socket.gaierror("the coordinator has no address")
        return HELLO

    async def behaviour(context: Context) -> None:
        await _welcome(context)
        await context.read()

    mesh = _Mesh(behaviour)
    async with _serving(mesh) as address, _joining(address, hello_at_second_try):
        assert await mesh.hellos.get() == HELLO


async def test_stay_joined_coordinator_goes_away_tells_that_it_is_out() -> None:
    async def leave(context: Context) -> None:
        await _welcome(context)

    async with _serving(_Mesh(leave)) as address, _joining(address) as told:
        while not await told.get():
            pass
        assert await told.get() is False


@pytest.mark.parametrize("heartbeat_seconds", [0.0, -1.0, float("nan")])
async def test_stay_joined_silent_coordinator_is_dialled_again(
    heartbeat_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join, "_MIN_HEARTBEAT_SECONDS", 0.01)

    async def behaviour(context: Context) -> None:
        await _welcome(context, heartbeat_seconds)
        while isinstance(await context.read(), mesh_pb2.WorkerMessage):
            pass

    mesh = _Mesh(behaviour)
    async with _serving(mesh) as address, _joining(address):
        for _ in range(2):
            await mesh.hellos.get()


async def test_stay_joined_first_message_is_no_welcome_dials_again() -> None:
    async def behaviour(context: Context) -> None:
        await context.write(mesh_pb2.CoordinatorMessage(heartbeat=mesh_pb2.Heartbeat()))

    mesh = _Mesh(behaviour)
    async with _serving(mesh) as address, _joining(address):
        for _ in range(2):
            await mesh.hellos.get()


async def _refuse(context: Context) -> None:
    refusal = mesh_pb2.Refusal(reason="run the same build")
    await context.write(mesh_pb2.CoordinatorMessage(refusal=refusal))


async def _abort(context: Context) -> None:
    raise ProtocolVersionError(expected=2, actual=1)


@pytest.mark.parametrize(
    ("behaviour", "reason"), [(_refuse, "run the same build"), (_abort, "protocol version 1")]
)
async def test_stay_joined_refused_raises_the_reason(
    behaviour: Callable[[Context], Awaitable[None]], reason: str
) -> None:
    async with _serving(_Mesh(behaviour)) as address, asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(WorkerRefusedError, match=reason):
            await stay_joined(address, _hello, _note_nothing, _never())


async def test_stay_joined_server_without_mesh_is_a_refusal_that_asks_for_a_coordinator() -> None:
    server = rpc.make_server()
    address = await rpc.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            with pytest.raises(WorkerRefusedError, match=r"--mesh address.*50051") as caught:
                await stay_joined(address, _hello, _note_nothing, _never())
    finally:
        await server.stop(grace=None)

    assert find_error(caught.value) is caught.value


async def test_stay_joined_http_server_is_a_refusal_that_names_the_right_port() -> None:
    """An --http door is easily taken for the --mesh address: both are a coordinator's."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(WAIT_SECONDS):
            with pytest.raises(WorkerRefusedError, match=r"speaks HTTP.*--mesh.*50051"):
                await stay_joined(address, _hello, _note_nothing, _never())


async def test_stay_joined_released_returns() -> None:
    async def behaviour(context: Context) -> None:
        await _welcome(context)
        await context.write(mesh_pb2.CoordinatorMessage(released=mesh_pb2.Released()))
        await asyncio.Event().wait()

    told: asyncio.Queue[bool] = asyncio.Queue()
    async with _serving(_Mesh(behaviour)) as address, asyncio.timeout(WAIT_SECONDS):
        await stay_joined(address, _hello, told.put, _never())
    assert [told.get_nowait(), told.get_nowait()] == [True, False]


async def test_stay_joined_asked_to_leave_says_so_and_goes_when_released() -> None:
    async def behaviour(context: Context) -> None:
        await _welcome(context, heartbeat_seconds=10.0)
        message = await context.read()
        assert isinstance(message, mesh_pb2.WorkerMessage)
        assert message.leaving.grace_seconds == 7.0
        await context.write(mesh_pb2.CoordinatorMessage(released=mesh_pb2.Released()))
        await asyncio.Event().wait()

    departure = Departure(asyncio.Event(), grace_seconds=7.0)
    departure.asked.set()
    async with _serving(_Mesh(behaviour)) as address, asyncio.timeout(WAIT_SECONDS):
        await stay_joined(address, _hello, _note_nothing, departure)


async def test_stay_joined_asked_to_leave_goes_with_its_coordinator() -> None:
    departure = Departure(asyncio.Event(), grace_seconds=7.0)

    async def behaviour(context: Context) -> None:
        await _welcome(context)
        departure.asked.set()

    async with _serving(_Mesh(behaviour)) as address, asyncio.timeout(WAIT_SECONDS):
        await stay_joined(address, _hello, _note_nothing, departure)


def test_retry_delays_double_up_to_the_maximum_with_jitter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(join, "_FIRST_DELAY_SECONDS", 1.0)
    monkeypatch.setattr(join, "_MAX_DELAY_SECONDS", 5.0)

    delays = list(itertools.islice(retry_delays(random.Random(0)), 6))

    for delay, longest in zip(delays, (1.0, 2.0, 4.0, 5.0, 5.0, 5.0), strict=True):
        assert longest / 2 <= delay <= longest
    assert len(set(delays)) == 6
