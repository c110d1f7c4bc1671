"""Activations larger than any message are sent in chunks, without blocking the event loop."""

import asyncio
from typing import Never

import torch

from runtime.rpc.channels import MAX_MESSAGE_BYTES
from stage_worker.transport.frame_codec import CHUNK_BYTES, ForwardContext
from tests.stage_worker.wire import linked, make_header, make_receiver, next_frame, receive_plan

NUM_TOKENS, WIDTH = 12, 1 << 20
NUM_CHUNKS = NUM_TOKENS * WIDTH * 4 // CHUNK_BYTES


async def test_step_larger_than_any_message_arrives_without_blocking_the_event_loop() -> None:
    # Case 19 (exo#1296, LocalAI#1150): silent death beyond the message limit. Case 28
    # (grpc#39803): a large message blocks the event loop.
    hidden_TH = torch.arange(NUM_TOKENS * WIDTH, dtype=torch.float32).reshape(NUM_TOKENS, WIDTH)
    assert hidden_TH.nbytes > 2 * MAX_MESSAGE_BYTES
    receiver = make_receiver(receive_plan(hidden_interval=(0, WIDTH)))
    num_turns = 0

    async def count_turns() -> Never:
        nonlocal num_turns
        while True:
            await asyncio.sleep(0)
            num_turns += 1

    async def handler(context: ForwardContext) -> None:
        frame = await next_frame(context)
        sender = receiver.attach(frame)
        receiver.accept(sender, frame, now=0.0)
        while not frame.head.last:
            frame = await next_frame(context)
            receiver.accept(sender, frame, now=0.0)
        await context.read()

    async with linked(handler, WIDTH) as link, asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(count_turns())
        sent = await link.send(make_header(0, NUM_TOKENS), hidden_TH)
        received = await receiver.take()
        counting.cancel()
    assert sent.num_frames == NUM_CHUNKS
    assert received.hidden is not None
    assert torch.equal(received.hidden.wait(), hidden_TH)
    # At least once for each chunk.
    assert num_turns >= NUM_CHUNKS
