"""Assembles the frames of one epoch's senders into complete steps, in order, within the window.

Frames are received independently of compute; every field is checked against the plan before memory
is allocated. `epoch_session.py` reads the frames and writes the credits.
"""

import asyncio
from dataclasses import dataclass

from protos import stage_pb2
from runtime.errors import FrameError, StaleEpochError, StepGapError, WindowExceededError
from stage_worker.device.host_device_copy import HostDeviceCopier, Upload
from stage_worker.transport.frame_assembly import (
    PartialStep,
    PayloadWriter,
    ReceivePlan,
    check_activation,
    check_header,
    check_same_header,
    empty_hidden,
)
from stage_worker.transport.frame_codec import WireFrame, epoch_name


@dataclass(frozen=True, slots=True)
class ReceivedStep:
    """A complete step; times are `time.monotonic` seconds of its first and last frame."""

    header: stage_pb2.StepHeader
    hidden: Upload | None
    begun_at: float
    complete_at: float


class Sender:
    """One attached sender: its next step and its unsent credits."""

    def __init__(self, rank: int, window: int) -> None:
        self.rank = rank
        self.step = 0
        self.num_credited = 0
        self.credits: asyncio.Queue[int] = asyncio.Queue(maxsize=window)
        self.writer: PayloadWriter | None = None

    def grant(self, step: int) -> None:
        """Grants one credit; raises WindowExceededError if the sender does not read them."""
        if self.credits.full():
            raise WindowExceededError(step=step, window=self.credits.maxsize)
        self.num_credited += 1
        self.credits.put_nowait(step)


class Receiver:
    """Turns frames into complete steps. Not thread-safe: used on the event loop only."""

    def __init__(self, plan: ReceivePlan, transfers: HostDeviceCopier) -> None:
        self._plan = plan
        self._transfers = transfers
        self._senders: dict[int, Sender] = {}
        self._partials: dict[int, PartialStep] = {}
        self._complete: asyncio.Queue[ReceivedStep] = asyncio.Queue(maxsize=plan.window)

    def attach(self, frame: WireFrame) -> Sender:
        """Admits the sender of this first frame, which still has to be accepted."""
        self._check_epoch(frame)
        rank = frame.head.sender_rank
        if rank not in self._plan.senders:
            known = ", ".join(map(str, self._plan.senders))
            raise FrameError(what="sender rank", expected=f"one of {known}", actual=rank)
        if rank in self._senders:
            raise FrameError(
                what=f"streams of sender {rank}", expected="one an epoch", actual="another"
            )
        self._senders[rank] = Sender(rank, self._plan.window)
        return self._senders[rank]

    def accept(self, sender: Sender, frame: WireFrame, now: float) -> None:
        """Processes one frame; raises the typed error of the first rule that it violates."""
        head = frame.head
        self._check_epoch(frame)
        if head.sender_rank != sender.rank:
            raise FrameError(what="sender rank", expected=sender.rank, actual=head.sender_rank)
        if head.step != sender.step:
            raise StepGapError(expected=sender.step, actual=head.step)
        if sender.writer is None:
            sender.writer = self._begin(sender, head, now)
        elif head.HasField("header") or head.HasField("activation"):
            raise FrameError(
                what="header", expected="on a step's first frame only", actual="another"
            )
        sender.writer.write(head.offset, frame.payload)
        if head.last:
            self._finish(sender, now)

    async def take(self) -> ReceivedStep:
        """Waits for the next step in order."""
        return await self._complete.get()

    def grant(self, step: int) -> None:
        """Grants every sender a credit for `step`."""
        for sender in self._senders.values():
            sender.grant(step)

    def _check_epoch(self, frame: WireFrame) -> None:
        if frame.head.epoch != self._plan.epoch:
            raise StaleEpochError(
                expected=epoch_name(self._plan.epoch), actual=epoch_name(frame.head.epoch)
            )

    def _begin(self, sender: Sender, head: stage_pb2.Frame, now: float) -> PayloadWriter:
        plan = self._plan
        if head.step - sender.num_credited >= plan.window:
            raise WindowExceededError(step=head.step, window=plan.window)
        num_tokens = check_header(head, plan.max_step_tokens)
        partial = self._partials.get(head.step)
        if partial is not None:
            check_same_header(head.header, partial.header, sender.rank)
        check_activation(head, num_tokens, plan)
        if partial is None:
            partial = PartialStep(head.header, empty_hidden(num_tokens, plan, self._transfers), now)
            self._partials[head.step] = partial
        return partial.open_writer(sender.rank, plan)

    def _finish(self, sender: Sender, now: float) -> None:
        assert sender.writer is not None
        sender.writer.check_complete()
        sender.writer = None
        partial = self._partials[sender.step]
        partial.num_finished += 1
        if partial.num_finished == len(self._plan.senders):
            del self._partials[sender.step]
            hidden_TH = partial.hidden_TH
            upload = None if hidden_TH is None else self._transfers.upload(hidden_TH)
            self._complete.put_nowait(ReceivedStep(partial.header, upload, partial.begun_at, now))
        sender.step += 1
