"""An epoch in the middle of a pipeline: overlap, backpressure and the timing of its sends.

The test is the previous stage, the device and the next stage, and controls when each proceeds.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, cast

import torch

from protos import stage_pb2
from runtime.protocol.result_codec import result_from_proto
from runtime.protocol.step import SendTiming, Step
from runtime.rpc import channels
from stage_worker.device.device_thread import DeviceThread
from stage_worker.epoch.epoch_plan import RankEpochPlan
from stage_worker.epoch.epoch_session import EpochSession
from stage_worker.execution.stage_spec import StageOutput
from stage_worker.transport.frame_codec import ForwardContext, WireFrame, add_forward_handler
from stage_worker.transport.stage_sender import LinkPlan, StageSender
from tests.stage_worker.wire import EPOCH, HIDDEN_SIZE, make_header, receive_plan

if TYPE_CHECKING:
    from stage_worker.execution.stage_runner import StageRunner

WAIT_SECONDS = 20.0
NUM_TOKENS = 2


class _Device:
    """A stage that adds one, and blocks on the steps in `held`."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.begun: asyncio.Queue[int] = asyncio.Queue()
        self.held: dict[int, threading.Event] = {}
        self._loop = asyncio.get_running_loop()

    def hold(self, number: int) -> threading.Event:
        self.held[number] = threading.Event()
        return self.held[number]

    def run(self, step: Step, hidden_TH: torch.Tensor | None) -> StageOutput:
        self._loop.call_soon_threadsafe(self.begun.put_nowait, step.number)
        if step.number in self.held:
            assert self.held[step.number].wait(WAIT_SECONDS)
        assert hidden_TH is not None
        return StageOutput(hidden_TH + 1.0, ())


class _After:
    """The next stage: reads every frame, and grants a complete step's credit on request."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[WireFrame] = asyncio.Queue()
        self.credits: asyncio.Queue[int] = asyncio.Queue()
        self._complete: asyncio.Queue[int] = asyncio.Queue()

    async def forward(self, _: Any, context: ForwardContext) -> None:
        await context.send_initial_metadata(())
        async with asyncio.TaskGroup() as tasks:
            crediting = tasks.create_task(self._give_credits(context))
            while isinstance(frame := await context.read(), WireFrame):
                self.frames.put_nowait(frame)
                if frame.head.last:
                    self._complete.put_nowait(frame.head.step)
            crediting.cancel()

    async def _give_credits(self, context: ForwardContext) -> None:
        while True:
            step = await self.credits.get()
            assert await self._complete.get() == step
            await context.write(stage_pb2.Credit(step=step))


class _Before:
    """The previous stage: sends steps as its credits allow."""

    def __init__(self, link: StageSender, tasks: asyncio.TaskGroup) -> None:
        self._link = link
        self._tasks = tasks
        self._num_steps = 0

    async def send(self) -> None:
        """One step, filled with its number."""
        number, self._num_steps = self._num_steps, self._num_steps + 1
        hidden_TH = torch.full((NUM_TOKENS, HIDDEN_SIZE), float(number))
        await self._link.send(make_header(number, NUM_TOKENS), hidden_TH)

    def start_sending(self, num_steps: int) -> "asyncio.Task[None]":
        async def send_all() -> None:
            for _ in range(num_steps):
                await self.send()

        return self._tasks.create_task(send_all())


@asynccontextmanager
async def _middle(
    *, is_sequential: bool = False
) -> AsyncIterator[tuple[_Before, _Device, EpochSession, _After]]:
    device, after = _Device(), _After()
    window = 1 if is_sequential else 2
    async with (
        asyncio.timeout(WAIT_SECONDS),
        _serving(after.forward) as after_address,
        asyncio.TaskGroup() as tasks,
    ):
        link = LinkPlan(EPOCH, 0, after_address, window, stage_pb2.DTYPE_FLOAT32, (0, HIDDEN_SIZE))
        with closing(DeviceThread(1)) as thread:
            plan = RankEpochPlan(receive_plan(window=window), (link,), is_sequential=is_sequential)
            session = EpochSession(plan, cast("StageRunner", device), thread)
            running = tasks.create_task(session.run())

            async def forward(_: Any, context: ForwardContext) -> None:
                await session.serve_sender(context)

            async with _serving(forward) as address:
                before_plan = LinkPlan(
                    EPOCH, 0, address, window, stage_pb2.DTYPE_FLOAT32, (0, HIDDEN_SIZE)
                )
                async with StageSender(before_plan) as before:
                    crediting = tasks.create_task(before.read_credits())
                    yield _Before(before, tasks), device, session, after
                    crediting.cancel()
                    running.cancel()


@asynccontextmanager
async def _serving(forward: Any) -> AsyncIterator[str]:
    server = channels.make_server()
    add_forward_handler(server, forward)
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield address
    finally:
        await server.stop(grace=None)


async def _sends(session: EpochSession, num_results: int) -> list[SendTiming]:
    """The send timings on the next results."""
    messages = session.results.messages()
    results = [result_from_proto(await anext(messages)) for _ in range(num_results)]
    assert [result.step for result in results] == list(range(num_results))
    return [result.timing.send for result in results if result.timing.send is not None]


async def test_steps_reach_the_next_stage_in_order_with_their_headers() -> None:
    async with _middle() as (before, _, _, after):
        before.start_sending(3)
        after.credits.put_nowait(0)

        frames = [await after.frames.get() for _ in range(3)]

        assert [frame.head.header for frame in frames] == [
            make_header(number, NUM_TOKENS) for number in range(3)
        ]
        assert [torch.frombuffer(bytearray(f.payload), dtype=torch.float32)[0] for f in frames] == [
            1.0,
            2.0,
            3.0,
        ]


async def test_send_that_waits_while_the_device_computes_is_hidden() -> None:
    async with _middle() as (before, device, session, after):
        hold = device.hold(3)
        before.start_sending(4)
        for _ in range(2):
            await after.frames.get()
        while await device.begun.get() != 3:
            pass
        # Step 2 waits for its credit while the device holds step 3.
        after.credits.put_nowait(0)
        await after.frames.get()
        hold.set()
        after.credits.put_nowait(1)
        await after.frames.get()
        for number in (2, 3):
            after.credits.put_nowait(number)
            await before.send()
            await after.frames.get()

        sends = await _sends(session, num_results=6)

        assert [send.step for send in sends] == sorted({send.step for send in sends})
        hidden = next(send for send in sends if send.step == 2)
        assert 0 < hidden.hidden_seconds <= hidden.seconds
        assert (hidden.num_frames, hidden.num_bytes > NUM_TOKENS * HIDDEN_SIZE * 4) == (1, True)
        # The activity includes a send that no result has reported yet.
        assert session.activity.num_steps == session.num_steps == 6
        assert session.activity.num_bytes_sent >= sum(send.num_bytes for send in sends)
        assert session.activity.compute_seconds > 0
        assert session.activity.wait_seconds == 0


async def test_next_stage_without_credits_stops_the_sender() -> None:
    async with _middle() as (before, device, _, after):
        sending = before.start_sending(12)
        # Two sent, one waiting for a credit, two in the outbox, one computed with no place there.
        begun = [await device.begun.get() for _ in range(6)]
        # Two more are in the receive queue: the sender is out of credits.
        assert begun == list(range(6))
        assert not sending.done()
        assert [(await after.frames.get()).head.step for _ in range(2)] == [0, 1]
        assert device.begun.empty()

        after.credits.put_nowait(0)

        assert await device.begun.get() == 6
        for number in range(1, 12):
            after.credits.put_nowait(number)
        await sending


async def test_sequential_stage_computes_and_receives_nothing_before_its_send() -> None:
    async with _middle(is_sequential=True) as (before, device, session, after):
        sending = before.start_sending(4)
        assert (await after.frames.get()).head.step == 0
        # Step 1 waits for its credit: nothing comes after it, neither in nor out.
        assert [await device.begun.get() for _ in range(2)] == [0, 1]
        assert not sending.done()
        assert device.begun.empty()
        assert after.frames.empty()

        for number in range(4):
            after.credits.put_nowait(number)
        await sending

        assert [(await after.frames.get()).head.step for _ in range(3)] == [1, 2, 3]
        sends = await _sends(session, num_results=4)
        assert {send.hidden_seconds for send in sends} == {0.0}
