"""A link to a peer that does what a test says."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from protos import stage_pb2
from runtime.rpc import channels
from stage_worker.transport.frame_codec import ForwardContext, WireFrame, add_forward_handler
from stage_worker.transport.stage_sender import LinkPlan, StageSender
from tests.stage_worker.frames import EPOCH, HIDDEN_SIZE

Handler = Callable[[ForwardContext], Awaitable[None]]


def link_plan(address: str = "", hidden_size: int = HIDDEN_SIZE) -> LinkPlan:
    """The whole hidden dimension to the one rank of the next stage."""
    return LinkPlan(EPOCH, 0, address, 2, stage_pb2.DTYPE_FLOAT32, (0, hidden_size))


@asynccontextmanager
async def linked(handler: Handler, hidden_size: int = HIDDEN_SIZE) -> AsyncIterator[StageSender]:
    """A link to a peer that does what `handler` says."""

    async def forward(_: Any, context: ForwardContext) -> None:
        await context.send_initial_metadata(())
        await handler(context)

    server = channels.make_server()
    add_forward_handler(server, forward)
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with StageSender(link_plan(address, hidden_size)) as link:
            yield link
    finally:
        await server.stop(grace=1.0)


async def next_frame(context: ForwardContext) -> WireFrame:
    """The next frame of a stream that has not ended."""
    frame = await context.read()
    assert isinstance(frame, WireFrame)
    return frame
