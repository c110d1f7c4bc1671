"""Several links: a slow one delays the next step, and not the other links."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import torch

from protos import stage_pb2
from runtime.rpc import channels
from stage_worker.transport.fanout_sender import FanoutSender
from stage_worker.transport.frame_codec import ForwardContext, WireFrame, add_forward_handler
from stage_worker.transport.hidden_partition import Interval, split_hidden
from stage_worker.transport.stage_sender import LinkPlan
from tests.stage_worker.wire import EPOCH, make_header

PARTS: tuple[Interval, ...] = ((0, 3), (3, 8))
WINDOW = 2


class _Peer:
    """A rank of the next stage: keeps frames, and grants a credit on request."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[WireFrame] = asyncio.Queue()
        self.credits: asyncio.Queue[int] = asyncio.Queue()

    async def forward(self, _: Any, context: ForwardContext) -> None:
        """Serves `Forward`."""
        await context.send_initial_metadata(())
        async with asyncio.TaskGroup() as tasks:
            crediting = tasks.create_task(self._give_credits(context))
            while isinstance(frame := await context.read(), WireFrame):
                self.frames.put_nowait(frame)
            crediting.cancel()

    async def _give_credits(self, context: ForwardContext) -> None:
        while True:
            await context.write(stage_pb2.Credit(step=await self.credits.get()))


@asynccontextmanager
async def _linked() -> AsyncIterator[tuple[FanoutSender, list[_Peer]]]:
    peers = [_Peer() for _ in PARTS]
    async with AsyncExitStack() as stack:
        plans = []
        for peer, part in zip(peers, PARTS, strict=True):
            server = channels.make_server()
            add_forward_handler(server, peer.forward)
            address = await channels.bind(server, "127.0.0.1:0")
            await server.start()
            stack.push_async_callback(server.stop, None)
            plans.append(LinkPlan(EPOCH, 0, address, WINDOW, stage_pb2.DTYPE_FLOAT32, part))
        yield await stack.enter_async_context(FanoutSender(plans)), peers


async def test_send_each_rank_gets_its_part_with_the_same_header() -> None:
    hidden_TH = torch.arange(24.0).reshape(3, 8)
    async with _linked() as (ranks, peers):
        sent = await ranks.send(make_header(0), split_hidden(hidden_TH, ranks.parts))
        frames = [await peer.frames.get() for peer in peers]
    assert [frame.head.header for frame in frames] == [make_header(0)] * 2
    for frame, (begin, end) in zip(frames, PARTS, strict=True):
        spec = frame.head.activation
        assert (spec.hidden_begin, spec.hidden_end) == (begin, end)
        part_TH = torch.frombuffer(bytearray(frame.payload), dtype=torch.float32).view(3, -1)
        assert torch.equal(part_TH, hidden_TH[:, begin:end])
    assert sent.num_frames == 2
    assert sent.num_bytes > hidden_TH.nbytes


async def test_send_waits_for_the_slowest_rank_only() -> None:
    async with _linked() as (ranks, (slow, fast)), asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(ranks.read_credits())
        for number in range(WINDOW):
            await ranks.send(make_header(number), (None, None))
        fast.credits.put_nowait(0)
        third = tasks.create_task(ranks.send(make_header(WINDOW), (None, None)))
        assert [(await fast.frames.get()).head.step for _ in range(3)] == [0, 1, 2]
        assert [(await slow.frames.get()).head.step for _ in range(2)] == [0, 1]
        assert slow.frames.empty()
        assert not third.done()
        slow.credits.put_nowait(0)
        await third
        assert (await slow.frames.get()).head.step == WINDOW
        reading.cancel()
