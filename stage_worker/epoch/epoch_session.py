"""Runs one epoch on one rank: receives, computes and sends, overlapped, steps strictly in order.

While step n+1 computes, step n is sent and n+2 received; a sequential epoch does one at a time. The
first failure, including that of a stream, ends the session: it is reported to the stage's other
ranks and to `Results`, and the streams are aborted. The worker keeps running.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from protos import stage_pb2
from runtime.errors import EpochEndedError, StagemeshError, find_error
from runtime.host.logs import get_logger
from runtime.protocol.step import RankActivity, Step, StepResult
from runtime.protocol.step_codec import header_to_step
from stage_worker.collectives.group import SINGLE_RANK, RankGroup
from stage_worker.device.device_thread import DeviceThread
from stage_worker.device.host_device_copy import Download, HostDeviceCopier, Upload
from stage_worker.epoch.epoch_plan import RankEpochPlan
from stage_worker.epoch.step_timing import ActivityListener, EpochTiming, ignore_activity
from stage_worker.execution.simulated_stage import AnyStage
from stage_worker.execution.stage_spec import StageOutput
from stage_worker.transport.fanout_sender import FanoutSender
from stage_worker.transport.frame_codec import ForwardContext, WireFrame, epoch_name
from stage_worker.transport.hidden_partition import Interval, split_hidden
from stage_worker.transport.receiver import Receiver, Sender
from stage_worker.transport.result_stream import ResultStream

# Outputs that wait for credits; with one being sent, compute is at most three steps ahead.
_NUM_OUTBOX = 2

_log = get_logger()


@dataclass(frozen=True, slots=True)
class _Output:
    """A computed step to be sent; `ready_at` is in `time.monotonic` seconds."""

    header: stage_pb2.StepHeader
    download: Download
    ready_at: float


class EpochSession:
    """Runs in one task (`run`); each sender's stream has its own task (`serve_sender`)."""

    def __init__(
        self,
        plan: RankEpochPlan,
        stage: AnyStage,
        device: DeviceThread,
        group: RankGroup = SINGLE_RANK,
        on_activity: ActivityListener = ignore_activity,
    ) -> None:
        """`group` is aborted at the end of the epoch, and not closed.

        `on_activity` is called with the activity of each step and send.
        """
        self.epoch = plan.receive.epoch
        self.results = ResultStream(self.epoch)
        self._plan = plan
        self._group = group
        # The first stage receives from the coordinator, the others from the stage before.
        self.is_first = plan.receive.hidden_interval is None
        self._stage = stage
        self._device = device
        self._transfers = HostDeviceCopier(stage.device)
        self._receiver = Receiver(plan.receive, self._transfers)
        self._outbox: asyncio.Queue[_Output] = asyncio.Queue(_NUM_OUTBOX)
        self._timing = EpochTiming(device, group, on_activity)
        self._reported = asyncio.get_running_loop().create_future()
        self._opened = asyncio.Event()
        self._ended = asyncio.Event()
        self._failure: StagemeshError | None = None

    async def run(self) -> None:
        """Runs the epoch until it fails or is cancelled; a failure is published and not raised."""
        try:
            async with FanoutSender(self._plan.links) as fanout:
                await self._run_steps(fanout)
        # The epoch's boundary: the worker survives any failure.
        except Exception as exc:  # noqa: BLE001
            self._failure = self._log_failure(exc)
        finally:
            self._ended.set()
            self._opened.set()
            self._group.abort(self._failure or _replaced())
            self.results.close(self._failure, self.num_steps)

    async def wait_open(self) -> None:
        """Returns once steps are accepted; raises the failure if the epoch ended before."""
        await self._opened.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def activity(self) -> RankActivity:
        """The activity of this rank so far."""
        return self._timing.total

    @property
    def num_steps(self) -> int:
        """Number of computed steps."""
        return self.activity.num_steps

    @property
    def has_ended(self) -> bool:
        """Whether the epoch has ended."""
        return self._ended.is_set()

    async def wait_ended(self) -> None:
        """Returns once the epoch has ended."""
        await self._ended.wait()

    async def serve_sender(self, context: ForwardContext) -> None:
        """Reads one sender's stream until the epoch ends; raises what ended it.

        A stream that is not admitted fails alone; the end of an admitted stream ends the epoch.
        """
        await context.send_initial_metadata(())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._raise_when_over())
            frame = await _read_frame(context, "a sender")
            sender = self._receiver.attach(frame)
            with self._ending_epoch(sender):
                tasks.create_task(_write_credits(context, sender))
                while True:
                    self._receiver.accept(sender, frame, time.monotonic())
                    frame = await _read_frame(context, f"sender {sender.rank}")

    async def _run_steps(self, fanout: FanoutSender) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._raise_reported())
            tasks.create_task(self._raise_when_unread())
            tasks.create_task(self._compute_steps(fanout))
            tasks.create_task(fanout.read_credits())
            if not self._plan.is_sequential:
                tasks.create_task(self._send_outputs(fanout))
            self._opened.set()

    async def _compute_steps(self, fanout: FanoutSender) -> None:
        self._timing.start()
        while True:
            received = await self._receiver.take()
            step = header_to_step(received.header)
            if not self._plan.is_sequential:
                self._receiver.grant(step.number)
            computed = await self._device.compute(
                partial(self._run_stage, step, received.hidden, fanout.parts)
            )
            timing = self._timing.computed(received, computed)
            download, computed_output = computed.value
            output = _Output(received.header, download, computed.ended_at)
            if self._plan.is_sequential:
                await self._send(fanout, output)
                self._receiver.grant(step.number)
            elif download.parts:
                await self._outbox.put(output)
            if self._plan.rank == 0:
                await self.results.put(
                    StepResult(step.number, computed_output.sampled, timing, computed_output.scored)
                )

    async def _send_outputs(self, fanout: FanoutSender) -> None:
        while True:
            await self._send(fanout, await self._outbox.get())

    async def _send(self, fanout: FanoutSender, output: _Output) -> None:
        if not output.download.parts:
            return
        sent = await fanout.send(output.header, await output.download.wait())
        self._timing.sent(output.header.step, output.ready_at, sent)

    def _run_stage(
        self, step: Step, hidden: Upload | None, parts: tuple[Interval, ...]
    ) -> tuple[Download, StageOutput]:
        """Runs one step on the device's thread and splits its output for the next ranks."""
        output = self._stage.run(step, None if hidden is None else hidden.wait())
        return self._transfers.download(split_hidden(output.hidden_TH, parts)), output

    @contextmanager
    def _ending_epoch(self, sender: Sender) -> Iterator[None]:
        """Ends the epoch when an admitted sender's stream ends, for the same reason."""
        try:
            yield
        except StagemeshError as error:
            self._report(error)
            raise
        finally:
            self._report(_sender_gone(f"the stream of sender {sender.rank} broke"))

    def _log_failure(self, exc: Exception) -> StagemeshError:
        """Returns and logs the epoch's failure; an unexpected exception with its traceback."""
        error = find_error(exc)
        failure = error or StagemeshError()
        # The process that caused an external end logs it as a warning.
        log = _log.info if isinstance(failure, EpochEndedError) else _log.warning
        end = EpochEndedError.caused_by(failure)
        log(
            "epoch_failed",
            epoch=epoch_name(self.epoch),
            step=self.num_steps,
            # Sequences whose KV cache is lost.
            num_sequences=self._stage.num_slots_used,
            code=end.cause,
            message=end.detail,
            exc_info=None if error else exc,
        )
        return failure

    def _report(self, error: StagemeshError) -> None:
        if not self._reported.done():
            self._reported.set_result(error)

    async def _raise_reported(self) -> None:
        raise await self._reported

    async def _raise_when_unread(self) -> None:
        await self.results.reader_gone.wait()
        raise EpochEndedError(cause="results_gone", detail="the reader of Results left")

    async def _raise_when_over(self) -> None:
        await self._ended.wait()
        raise EpochEndedError.caused_by(self._failure or _replaced())


async def _read_frame(context: ForwardContext, sender: str) -> WireFrame:
    frame = await context.read()
    if not isinstance(frame, WireFrame):
        raise _sender_gone(f"{sender} closed its stream")
    return frame


async def _write_credits(context: ForwardContext, sender: Sender) -> None:
    while True:
        await context.write(stage_pb2.Credit(step=await sender.credits.get()))


def _replaced() -> EpochEndedError:
    return EpochEndedError(cause="closed", detail="another epoch or assignment took over")


def _sender_gone(detail: str) -> EpochEndedError:
    return EpochEndedError(cause="sender_gone", detail=detail)
