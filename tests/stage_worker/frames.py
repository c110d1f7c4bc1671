"""Frames and headers for tests of the wire, made as a sender of the plan would make them."""

from collections.abc import Mapping

import torch

from protos import stage_pb2
from runtime.protocol.step import SequenceChunk, Step
from runtime.protocol.step_codec import step_to_header
from stage_worker.device.host_device_copy import HostDeviceCopier
from stage_worker.transport.frame_assembly import ReceivePlan
from stage_worker.transport.frame_codec import WireFrame, decode_frame, encode_frame
from stage_worker.transport.hidden_partition import Interval
from stage_worker.transport.receiver import Receiver, Sender
from stage_worker.transport.stage_sender import LinkPlan, step_frames

EPOCH = stage_pb2.EpochId(coordinator_id="coordinator", counter=3)
HIDDEN_SIZE = 8


def receive_plan(
    *,
    senders: Mapping[int, Interval | None] | None = None,
    window: int = 2,
    max_step_tokens: int = 16,
    dtype: stage_pb2.DType = stage_pb2.DTYPE_FLOAT32,
    hidden_interval: Interval | None = (0, HIDDEN_SIZE),
) -> ReceivePlan:
    """What a rank in the middle of a pipeline expects: all from one sender, if not told else."""
    senders = senders or {0: hidden_interval}
    return ReceivePlan(EPOCH, senders, window, max_step_tokens, dtype, hidden_interval)


def make_receiver(plan: ReceivePlan) -> Receiver:
    """The receiver of a rank on a CPU."""
    return Receiver(plan, HostDeviceCopier(torch.device("cpu")))


def make_header(number: int, num_tokens: int = 3) -> stage_pb2.StepHeader:
    """A step of one sequence's chunk, or an empty one."""
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
    """One step as it comes out of the other end of the wire."""
    plan = LinkPlan(EPOCH, sender_rank, "", 2, dtype, hidden_interval)
    frames = step_frames(plan, header, hidden_TH)
    return [decode_frame(encode_frame(frame)) for frame in frames]


def make_frame(number: int, num_tokens: int = 3) -> WireFrame:
    """The one frame of a small step with an activation of ones."""
    hidden_TH = torch.ones(num_tokens, HIDDEN_SIZE) if num_tokens else None
    (frame,) = make_frames(make_header(number, num_tokens), hidden_TH)
    return frame


def feed(receiver: Receiver, frames: list[WireFrame], sender: Sender | None = None) -> Sender:
    """Gives `frames` of one sender to `receiver`; the sender is attached if it is new."""
    sender = sender or receiver.attach(frames[0])
    for frame in frames:
        receiver.accept(sender, frame, now=0.0)
    return sender


def edited(frame: WireFrame, payload: bytes | None = None, **fields: object) -> WireFrame:
    """A frame like `frame` but for the payload and the fields given."""
    head = stage_pb2.Frame()
    head.CopyFrom(frame.head)
    for name, value in fields.items():
        setattr(head, name, value)
    return WireFrame(head, frame.payload if payload is None else memoryview(payload))
