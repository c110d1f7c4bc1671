"""Frames, receivers and links for tests of the transport between stages."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import torch

from protos import stage_pb2
from runtime.protocol.step import SequenceChunk, Step
from runtime.protocol.step_codec import step_to_header
from runtime.rpc import channels
from stage_worker.device.host_device_copy import HostDeviceCopier
from stage_worker.transport.frame_assembly import ReceivePlan
from stage_worker.transport.frame_codec import (
    ForwardContext,
    WireFrame,
    add_forward_handler,
    decode_frame,
    encode_frame,
)
from stage_worker.transport.hidden_partition import Interval
from stage_worker.transport.receiver import Receiver, Sender
from stage_worker.transport.stage_sender import LinkPlan, StageSender, step_frames

EPOCH = stage_pb2.EpochId(coordinator_id="coordinator", counter=3)
HIDDEN_SIZE = 8

Handler = Callable[[ForwardContext], Awaitable[None]]


def receive_plan(
    *,
    senders: Mapping[int, Interval | None] | None = None,
    window: int = 2,
    max_step_tokens: int = 16,
    dtype: stage_pb2.DType = stage_pb2.DTYPE_FLOAT32,
    hidden_interval: Interval | None = (0, HIDDEN_SIZE),
) -> ReceivePlan:
    """The plan of a rank in the middle of a pipeline, by default with one sender."""
    senders = senders or {0: hidden_interval}
    return ReceivePlan(EPOCH, senders, window, max_step_tokens, dtype, hidden_interval)


def make_receiver(plan: ReceivePlan) -> Receiver:
    """The receiver of a rank on a CPU."""
    return Receiver(plan, HostDeviceCopier(torch.device("cpu")))


def make_header(number: int, num_tokens: int = 3) -> stage_pb2.StepHeader:
    """The header of a step with one chunk, or of an empty step."""
    chunks = (SequenceChunk(0, 0, tuple(range(num_tokens))),) if num_tokens else ()
    return step_to_header(Step(number, chunks=chunks))


def make_frames(
    header: stage_pb2.StepHeader,
    hidden_TH: torch.Tensor | None,
    *,
    sender_rank: int = 0,
    hidden_interval: Interval = (0, HIDDEN_SIZE),
    dtype: stage_pb2.DType = stage_pb2.DTYPE_FLOAT32,
) -> list[WireFrame]:
    """One step's frames, encoded and decoded."""
    plan = LinkPlan(EPOCH, sender_rank, "", 2, dtype, hidden_interval)
    frames = step_frames(plan, header, hidden_TH)
    return [decode_frame(encode_frame(frame)) for frame in frames]


def make_frame(number: int, num_tokens: int = 3) -> WireFrame:
    """The only frame of a small step whose activation is all ones."""
    hidden_TH = torch.ones(num_tokens, HIDDEN_SIZE) if num_tokens else None
    (frame,) = make_frames(make_header(number, num_tokens), hidden_TH)
    return frame


def feed(receiver: Receiver, frames: list[WireFrame], sender: Sender | None = None) -> Sender:
    """Passes one sender's `frames` to `receiver`; attaches a new sender if none is given."""
    sender = sender or receiver.attach(frames[0])
    for frame in frames:
        receiver.accept(sender, frame, now=0.0)
    return sender


def edited(frame: WireFrame, payload: bytes | None = None, **fields: object) -> WireFrame:
    """A copy of `frame` with the given payload and fields."""
    head = stage_pb2.Frame()
    head.CopyFrom(frame.head)
    for name, value in fields.items():
        setattr(head, name, value)
    return WireFrame(head, frame.payload if payload is None else memoryview(payload))


def link_plan(address: str = "", hidden_size: int = HIDDEN_SIZE) -> LinkPlan:
    """A link that carries the whole hidden dimension to a stage of one rank."""
    return LinkPlan(EPOCH, 0, address, 2, stage_pb2.DTYPE_FLOAT32, (0, hidden_size))


@asynccontextmanager
async def linked(handler: Handler, hidden_size: int = HIDDEN_SIZE) -> AsyncIterator[StageSender]:
    """A link to a peer whose `Forward` is `handler`."""

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
