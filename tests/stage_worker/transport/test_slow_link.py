"""A slow link and a dead link during a large send."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from protos import stage_pb2
from runtime.errors import NextStageError
from runtime.rpc import channels
from stage_worker.service import WorkerHealth
from stage_worker.transport.fanout_sender import FanoutSender
from stage_worker.transport.frame_codec import ForwardContext, WireFrame, add_forward_handler
from stagemesh.faults.fault_proxy import FaultProxy, Faults
from tests.stage_worker.wire import link_plan, make_header

# Nine on an idle machine; the activation's connection would take a minute.
NOTICED_SECONDS = 20.0
SLOW_BYTES_PER_SECOND = 100_000
HIDDEN_SIZE = 4096
# 1.25 MiB: its transfer takes longer than a peer may be silent.
NUM_TOKENS = 80


class Peer:
    """The next stage: reads every step and grants its credit."""

    def __init__(self) -> None:
        self.began = asyncio.Event()

    async def forward(self, _: Any, context: ForwardContext) -> None:
        await context.send_initial_metadata(())
        while isinstance(frame := await context.read(), WireFrame):
            self.began.set()
            if frame.head.last:
                await context.write(stage_pb2.Credit(step=frame.head.step))


@asynccontextmanager
async def linked_through(peer: Peer) -> AsyncIterator[tuple[FaultProxy, FanoutSender]]:
    """A link to `peer` through a proxy."""
    server = channels.make_server(is_bulk=True)
    add_forward_handler(server, peer.forward)
    await WorkerHealth().add_to(server)
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    async with (
        FaultProxy.listening("127.0.0.1:0", address) as (proxy, through),
        FanoutSender([link_plan(through, HIDDEN_SIZE)]) as link,
    ):
        yield proxy, link
    await server.stop(None)


@pytest.mark.timeout(90)
async def test_slow_link_completes_a_large_send() -> None:
    async with linked_through(Peer()) as (proxy, link):
        proxy.set(Faults(bytes_per_second=SLOW_BYTES_PER_SECOND))
        hidden_TH = torch.zeros(NUM_TOKENS, HIDDEN_SIZE)
        listening = asyncio.create_task(link.read_credits())
        # The window is two steps: the third is sent when the first has arrived.
        sending = asyncio.create_task(_send(link, hidden_TH, None, None))
        await asyncio.wait((listening, sending), return_when=asyncio.FIRST_COMPLETED)
        assert not listening.done()
        await sending
        assert proxy.num_bytes > hidden_TH.nbytes > 10 * SLOW_BYTES_PER_SECOND
        listening.cancel()
        await asyncio.wait((listening,))


async def test_stalled_link_during_a_large_send_times_out() -> None:
    peer = Peer()
    async with linked_through(peer) as (proxy, link):
        listening = asyncio.create_task(link.read_credits())
        large_TH = torch.zeros(64 * NUM_TOKENS, HIDDEN_SIZE)
        sending = asyncio.create_task(_send(link, large_TH))
        await peer.began.wait()
        proxy.set(Faults(is_stalled=True))
        async with asyncio.timeout(NOTICED_SECONDS):
            await asyncio.wait((listening,))
        with pytest.raises(ExceptionGroup) as caught:
            await listening
        assert caught.group_contains(NextStageError, match="ping timeout")
        sending.cancel()
        await asyncio.wait((sending,))


async def _send(link: FanoutSender, *steps: torch.Tensor | None) -> None:
    for number, hidden_TH in enumerate(steps):
        num_tokens = 0 if hidden_TH is None else hidden_TH.shape[0]
        await link.send(make_header(number, num_tokens=num_tokens), [hidden_TH])
