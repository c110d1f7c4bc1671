"""One epoch on one rank: receive, compute and send overlapped, steps strictly in order.

While step n+1 computes, step n is being sent and n+2 received; a sequential epoch takes turns. The
first failure anywhere, also of a stream, ends the session: it goes to the other ranks of the stage
and to `Results`, the streams are aborted, and the worker lives on. `worker.py` opens and loads.
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
    """A computed step on its way to the next stage; `ready_at` is `time.monotonic` seconds."""

    header: stage_pb2.StepHeader
    download: Download
    ready_at: float


class EpochSession:
    """Runs in one task (`run`); each sender's stream is served by its own (`serve_sender`)."""

    def __init__(
        self,
        plan: RankEpochPlan,
        stage: AnyStage,
        device: DeviceThread,
        group: RankGroup = SINGLE_RANK,
        count: ActivityListener = ignore_activity,
    ) -> None:
        """`group` is this rank's end of its stage; it is aborted at the end, not closed.

        `count` is told what this rank does, as it does it.
        """
        self.epoch = plan.receive.epoch
        self.results = ResultStream(self.epoch)
        self._plan = plan
        self._group = group
        # Its steps come from the coordinator, those of others from the stage before.
        self.is_first = plan.receive.hidden_interval is None
        self._stage = stage
        self._device = device
        self._transfers = HostDeviceCopier(stage.device)
        self._receiver = Receiver(plan.receive, self._transfers)
        self._outbox: asyncio.Queue[_Output] = asyncio.Queue(_NUM_OUTBOX)
        self._record = EpochTiming(device, group, count)
        self._reported = asyncio.get_running_loop().create_future()
        self._settled = asyncio.Event()
        self._over = asyncio.Event()
        self._failure: StagemeshError | None = None

    async def run(self) -> None:
        """Run the epoch until it fails, which is published and not raised, or is cancelled."""
        try:
            async with FanoutSender(self._plan.links) as next_ranks:
                await self._run_steps(next_ranks)
        # The epoch's boundary: whatever it was, the worker lives on.
        except Exception as exc:  # noqa: BLE001
            self._failure = self._log_failure(exc)
        finally:
            self._over.set()
            self._settled.set()
            self._group.abort(self._failure or _taken_over())
            self.results.close(self._failure, self.num_steps)

    async def wait_open(self) -> None:
        """Return when steps can come; raise what ended the epoch if it ended before."""
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def activity(self) -> RankActivity:
        """What this rank did so far."""
        return self._record.total

    @property
    def num_steps(self) -> int:
        """Steps that were computed."""
        return self.activity.num_steps

    @property
    def is_over(self) -> bool:
        """No further step will run."""
        return self._over.is_set()

    async def over(self) -> None:
        """Return once no further step will run."""
        await self._over.wait()

    async def serve_sender(self, context: ForwardContext) -> None:
        """Drain one sender's stream until the epoch ends; raises what ended it.

        A stream that never belonged to this epoch costs only itself; a sender that was admitted
        takes the epoch with it, however it ends.
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

    async def _run_steps(self, next_ranks: FanoutSender) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._raise_reported())
            tasks.create_task(self._raise_when_unread())
            tasks.create_task(self._compute_steps(next_ranks))
            tasks.create_task(next_ranks.read_credits())
            if not self._plan.is_sequential:
                tasks.create_task(self._send_outputs(next_ranks))
            self._settled.set()

    async def _compute_steps(self, next_ranks: FanoutSender) -> None:
        self._record.start()
        while True:
            received = await self._receiver.take()
            step = header_to_step(received.header)
            if not self._plan.is_sequential:
                self._receiver.grant(step.number)
            computed = await self._device.compute(
                partial(self._run_stage, step, received.hidden, next_ranks.parts)
            )
            timing = self._record.computed(received, computed)
            download, told = computed.value
            output = _Output(received.header, download, computed.ended_at)
            if self._plan.is_sequential:
                await self._send(next_ranks, output)
                self._receiver.grant(step.number)
            elif download.parts:
                await self._outbox.put(output)
            if self._plan.rank == 0:
                await self.results.put(StepResult(step.number, told.sampled, timing, told.scored))

    async def _send_outputs(self, next_ranks: FanoutSender) -> None:
        while True:
            await self._send(next_ranks, await self._outbox.get())

    async def _send(self, next_ranks: FanoutSender, output: _Output) -> None:
        if not output.download.parts:
            return
        sent = await next_ranks.send(output.header, await output.download.arrived())
        self._record.sent(output.header.step, output.ready_at, sent)

    def _run_stage(
        self, step: Step, hidden: Upload | None, parts: tuple[Interval, ...]
    ) -> tuple[Download, StageOutput]:
        """On the device's thread: one step, its output cut for the next ranks."""
        output = self._stage.run(step, None if hidden is None else hidden.arrived())
        return self._transfers.download(split_hidden(output.hidden_TH, parts)), output

    @contextmanager
    def _ending_epoch(self, sender: Sender) -> Iterator[None]:
        """Whatever ends an admitted sender's stream ends the epoch, with that as the reason."""
        try:
            yield
        except StagemeshError as error:
            self._report(error)
            raise
        finally:
            self._report(_sender_gone(f"the stream of sender {sender.rank} broke"))

    def _log_failure(self, exc: Exception) -> StagemeshError:
        """What the epoch failed of; a bug of ours is logged with its traceback."""
        error = find_error(exc)
        failure = error or StagemeshError()
        # An end that came from outside is told by whoever caused it.
        log = _log.info if isinstance(failure, EpochEndedError) else _log.warning
        end = EpochEndedError.by(failure)
        log(
            "epoch_failed",
            epoch=epoch_name(self.epoch),
            step=self.num_steps,
            # Sequences whose KV cache is lost with it.
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
        await self._over.wait()
        raise EpochEndedError.by(self._failure or _taken_over())


async def _read_frame(context: ForwardContext, sender: str) -> WireFrame:
    frame = await context.read()
    if not isinstance(frame, WireFrame):
        raise _sender_gone(f"{sender} closed its stream")
    return frame


async def _write_credits(context: ForwardContext, sender: Sender) -> None:
    while True:
        await context.write(stage_pb2.Credit(step=await sender.credits.get()))


def _taken_over() -> EpochEndedError:
    return EpochEndedError(cause="closed", detail="another epoch or assignment took over")


def _sender_gone(detail: str) -> EpochEndedError:
    return EpochEndedError(cause="sender_gone", detail=detail)
