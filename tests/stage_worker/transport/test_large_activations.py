"""Credits, failures and the end of a link take effect during a large send."""

import asyncio
from contextlib import suppress

import pytest
import torch

from protos import stage_pb2
from runtime.errors import EpochEndedError, FrameError, StepGapError
from stage_worker.transport.frame_codec import ForwardContext
from stage_worker.transport.stage_sender import StageSender
from tests.stage_worker.wire import HIDDEN_SIZE, linked, make_header, next_frame

# Data behind the activation is never read.
WAIT_SECONDS = 20.0


async def test_peer_failure_arrives_during_a_large_send() -> None:
    is_blocked = asyncio.Event()

    async def handler(context: ForwardContext) -> None:
        await next_frame(context)
        await is_blocked.wait()
        raise StepGapError(expected=1, actual=2)

    async with linked(handler) as link, asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(_send_until_it_ends(link))
        is_blocked.set()
        async with asyncio.timeout(WAIT_SECONDS):
            with pytest.raises(EpochEndedError) as caught:
                await link.read_credits()
        await sending
    # An interrupted write may hide the reason, which the peer's own Results report.
    assert caught.value.cause in ("step_gap", "stream_closed")


async def test_close_ends_a_large_send() -> None:
    has_begun, has_ended = asyncio.Event(), asyncio.Event()

    async def handler(context: ForwardContext) -> None:
        await next_frame(context)
        has_begun.set()
        try:
            await asyncio.Event().wait()  # reads no more, so that the rest stays with the sender
        finally:
            has_ended.set()

    async with linked(handler) as link, asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(_send_until_it_ends(link))
        await has_begun.wait()
        assert not sending.done()
        async with asyncio.timeout(WAIT_SECONDS):
            await link.close()
            await has_ended.wait()
            # The send raises EpochEndedError, or CancelledError if gRPC cancels a write under way.
            await asyncio.wait((sending,))


async def test_credits_arrive_during_a_large_send() -> None:
    async def handler(context: ForwardContext) -> None:
        for _ in range(2):
            await next_frame(context)
        for step in (0, 5):
            await context.write(stage_pb2.Credit(step=step))
        await asyncio.Event().wait()

    async with linked(handler) as link, asyncio.TaskGroup() as tasks:
        await link.send(make_header(0), None)
        sending = tasks.create_task(_send_until_it_ends(link, 1))
        async with asyncio.timeout(WAIT_SECONDS):
            with pytest.raises(FrameError, match="step of a credit: expected 1, got 5"):
                await link.read_credits()
        assert not sending.done()
        await link.close()


async def _send_until_it_ends(link: StageSender, number: int = 0) -> None:
    """16 MiB, far more than the peer and the sockets buffer."""
    header = make_header(number)
    with suppress(EpochEndedError):
        await link.send(header, torch.zeros(1 << 19, HIDDEN_SIZE))
