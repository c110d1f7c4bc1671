"""Runs the requests of one replica: queues them, drives their steps and reports their outputs.

An engine outlives epochs: requests that no other replica takes wait here while no epoch serves, and
continue from their last token in the next one. It never waits for a client, opens no connection to
a worker and does not choose its requests: `request_router.py` does.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from coordinator.engine.active_requests import ActiveRequests
from coordinator.engine.outputs import (
    EngineOutputs,
    EngineStats,
    Handover,
    ProcessOutputs,
    SequenceFailure,
    SequenceStart,
)
from coordinator.engine.poison_request_detector import PoisonRequestDetector
from coordinator.engine.step_loop import Clock, StepEvents, StepLoop
from coordinator.stage_client.epoch_streams import EpochStreams
from coordinator.telemetry.scheduler_telemetry import SchedulerMetrics, StepMetrics
from runtime.errors import EpochEndedError, StagemeshError
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.step import Step
from scheduler import (
    NO_PROGRESS,
    Policy,
    PolicySnapshot,
    QueueForecast,
    ReplicaLoad,
    Scheduler,
    SchedulerLimits,
    SequenceRequest,
    Watchdog,
    make_load,
)


class Engine:
    """The requests of one replica and their scheduler; `serve` gets the streams of an epoch."""

    def __init__(
        self,
        replica: int,
        policy: Policy,
        step_seconds: float,
        metrics: CoordinatorMetrics,
        process_outputs: ProcessOutputs,
        clock: Clock = time.monotonic,
        stall_seconds: float = 10.0,
    ) -> None:
        self.replica = replica
        self.clock = clock
        self.is_draining = False
        self.is_serving = False
        # Called after every change of `takes_requests`; the router then moves requests.
        self.on_change: Callable[[Engine], None] = lambda _: None
        self.wake = asyncio.Event()
        self.scheduler: Scheduler | None = None
        self.limits: SchedulerLimits | None = None
        # How fast the queue gets shorter.
        self.queue_forecast = QueueForecast()
        self._policy = policy
        self._step_seconds = step_seconds
        self._stall_seconds = stall_seconds
        self._process_outputs = process_outputs
        self._metrics = metrics
        self._step_metrics = StepMetrics(metrics, replica)
        self._scheduler_metrics = SchedulerMetrics(metrics, replica)
        self._active = ActiveRequests(metrics, replica)
        self._poison_detector = PoisonRequestDetector(self._isolate)
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0

    @property
    def takes_requests(self) -> bool:
        """Whether an epoch serves that is not being drained."""
        return self.is_serving and not self.is_draining

    @property
    def policy_snapshot(self) -> PolicySnapshot:
        """The policy's snapshot; empty before the first epoch."""
        return self.scheduler.policy_snapshot if self.scheduler else PolicySnapshot("", 0)

    def update_metrics(self) -> None:
        """Sets the scheduler's metrics to its snapshot."""
        self._scheduler_metrics.update(self.policy_snapshot)

    def stats(self) -> EngineStats:
        """The counts of now; without an epoch so far, every request waits."""
        scheduler, limits = self.scheduler, self.limits
        return EngineStats(
            num_requests=len(self._active),
            num_running=scheduler.num_running if scheduler else 0,
            num_waiting=scheduler.num_waiting if scheduler else len(self._active),
            num_steps_in_flight=scheduler.num_steps_in_flight if scheduler else 0,
            num_blocks=limits.num_blocks if limits else 0,
            num_blocks_used=scheduler.num_blocks_used if scheduler else 0,
            num_slots_used=scheduler.num_slots_used if scheduler else 0,
            num_logprobs=self._active.num_logprobs,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_generated_tokens,
        )

    def load(self) -> ReplicaLoad:
        """The load as the router compares it."""
        if self.scheduler is None or self.limits is None:
            return ReplicaLoad(self.replica, takes_requests=False)
        stages = self.scheduler.policy_snapshot.stages
        return make_load(
            self.replica,
            self.takes_requests,
            self.scheduler.unfinished,
            self.limits,
            self.scheduler.num_blocks_used,
            max((stage.costs.last_token for stage in stages), default=0.0),
        )

    # ---- requests, for the router ----------------------------------------------------------------

    def add(self, request: SequenceRequest) -> None:
        """Enqueues a new request."""
        self._active.add(request)
        self._num_prompt_tokens += len(request.prompt_ids)
        if self.scheduler is not None:
            self._schedule(request)

    def adopt(self, handover: Handover) -> None:
        """Continues a request of another engine; only after the first epoch has begun."""
        request = handover.request
        self._active.add(request)
        self._schedule(request, handover.token_ids)
        if request.sequence_id in self._active:
            self._poison_detector.adopt(request.sequence_id, handover.num_ends)

    def unfinished(self, *, only_waiting: bool = False) -> list[SequenceRequest]:
        """All unfinished requests, or only those without a slot."""
        if not only_waiting or self.scheduler is None:
            return list(self._active)
        sequences = self.scheduler.unfinished
        return [self._active[each.sequence_id] for each in sequences if each.allocation is None]

    def withdraw(self, sequence_id: int) -> Handover:
        """Removes a request, for another engine to adopt."""
        token_ids = () if self.scheduler is None else self.scheduler.withdraw(sequence_id)
        num_ends = self._poison_detector.num_ends(sequence_id)
        handover = Handover(self._active[sequence_id], token_ids, num_ends)
        self._remove(sequence_id, is_handover=True)
        return handover

    def cancel(self, sequence_ids: Iterable[int]) -> None:
        """Drops the requests that are unfinished here; the next step releases their slots."""
        for sequence_id in sequence_ids:
            if sequence_id in self._active:
                self._drop(sequence_id)

    def fail_all(self, error: StagemeshError) -> None:
        """Ends every request with `error`."""
        for request in self._active:
            self._fail(request.sequence_id, error)

    async def drained(self) -> None:
        """Returns once no request is left."""
        await self._active.wait_idle()

    # ---- epochs, for the replica -----------------------------------------------------------------

    async def serve(self, streams: EpochStreams, limits: SchedulerLimits) -> None:
        """Never returns: runs the requests over `streams` until the epoch ends."""
        scheduler = self._begin(limits, streams.num_sent)
        self.is_serving = True
        self.on_change(self)
        loop = self.make_loop(streams, scheduler)
        while True:
            for events in loop.take_results():
                self._apply(events, scheduler)
            while (step := loop.schedule(now := self.clock())) is not None:
                self._report_start(step, now, scheduler)
                await loop.send(step)
            await loop.wait()

    def make_loop(self, streams: EpochStreams, scheduler: Scheduler) -> StepLoop:
        """A step loop with this engine's clock and wake event."""
        watchdog = Watchdog(self._step_seconds, self._stall_seconds)
        return StepLoop(scheduler, streams, self.wake, watchdog, self.clock)

    def drain(self) -> None:
        """Starts the planned end of the epoch: other engines take over the requests."""
        self.is_draining = True
        self.on_change(self)

    def end_epoch(self, cause: StagemeshError, *, is_planned: bool = False) -> bool:
        """Queues all running requests again, except a poison request, which fails.

        Returns whether there was a poison request; a planned end is never counted against requests.
        """
        self.is_serving = self.is_draining = False
        end = EpochEndedError.caused_by(cause)
        self._metrics.epoch_ends.labels(str(self.replica), end.cause).inc()
        if end.cause == NO_PROGRESS and self.scheduler is not None:
            # No step was made, so the head of the queue may be the request that cannot run.
            first = self.scheduler.next_waiting_id(self.clock())
            if first is not None:
                self._poison_detector.started(first)
        poison_id = self._poison_detector.end_epoch(is_planned=is_planned)
        if poison_id is not None:
            num_ends = self._poison_detector.num_ends(poison_id)
            detail = f"the request ran at {num_ends} ends, at the last one alone"
            self._fail(poison_id, EpochEndedError.caused_by(cause, detail))
        if self.limits is not None:
            self._begin(self.limits, first_step=0)
        self.on_change(self)
        return poison_id is not None

    def _begin(self, limits: SchedulerLimits, first_step: int) -> Scheduler:
        """Starts an epoch in the scheduler, in which all requests wait; numbers its steps."""
        self.limits = limits
        if self.scheduler is None:
            self.scheduler = Scheduler(limits, self._policy, first_step)
            for request in self._active:
                self._schedule(request)
            return self.scheduler
        self.update_metrics()
        self._scheduler_metrics.start_epoch()
        for sequence_id in self.scheduler.restart(limits, first_step):
            request = self._active[sequence_id]
            self._end_if_unfit(request, request.max_tokens)
        self._isolate(self._poison_detector.isolated_id)
        return self.scheduler

    # ---- outputs ---------------------------------------------------------------------------------

    def _report_start(self, step: Step, now: float, scheduler: Scheduler) -> None:
        """Reports the sequences that get a slot with `step`, which is about to be sent."""
        started: list[SequenceStart] = []
        for opening in step.opened_slots:
            sequence_id = scheduler.sequence_in_slot(opening.slot)
            self._poison_detector.started(sequence_id)
            self.queue_forecast.started(now)
            started.append(SequenceStart(sequence_id, len(opening.cached_token_ids)))
        if started:
            self._process_outputs(EngineOutputs(now, started=tuple(started)))
        self._step_metrics.observe(step, scheduler.num_preemptions)
        self._step_metrics.observe_prefix_cache(
            scheduler.num_queried_tokens, scheduler.num_hit_tokens
        )

    def _apply(self, events: StepEvents, scheduler: Scheduler) -> None:
        """Reports the outputs of one step and removes the sequences that ended with it."""
        stopped = self._process_outputs(
            EngineOutputs(events.now, scored=events.scored, tokens=events.tokens)
        )
        num_tokens = 0
        for sequence_id, token, finish_reason in events.tokens:
            if not token.problem:
                num_tokens += not self._active[sequence_id].is_score_only
                self._poison_detector.made_progress(sequence_id)
            if token.problem or finish_reason is not None:
                self._remove(sequence_id)
        self._num_generated_tokens += num_tokens
        self._metrics.generated_tokens.inc(num_tokens)
        self.cancel(stopped)

    def _fail(self, sequence_id: int, error: StagemeshError) -> None:
        failure = SequenceFailure(sequence_id, error)
        self._process_outputs(EngineOutputs(self.clock(), failed=(failure,)))
        self._drop(sequence_id)

    # ---- sequences -------------------------------------------------------------------------------

    def _schedule(self, request: SequenceRequest, token_ids: tuple[int, ...] = ()) -> None:
        """Hands a request that has generated `token_ids` to the scheduler, or ends it."""
        assert self.scheduler is not None
        if not self._end_if_unfit(request, len(token_ids)):
            self.scheduler.resume(request, token_ids)
        self.wake.set()

    def _end_if_unfit(self, request: SequenceRequest, num_generated: int) -> bool:
        """Ends a request that has no room left under the limits; returns whether it did.

        It fails if its prompt does not fit, and finishes if only the next token does not.
        """
        assert self.limits is not None
        num_prompt_tokens = len(request.prompt_ids)
        try:
            self.limits.check_fits(num_prompt_tokens, request.max_tokens)
        except StagemeshError as error:
            self._fail(request.sequence_id, error)
            return True
        final_len = self.limits.final_len(num_prompt_tokens, request.max_tokens)
        if num_prompt_tokens + num_generated < final_len:
            return False
        self._process_outputs(EngineOutputs(self.clock(), finished=(request.sequence_id,)))
        self._remove(request.sequence_id)
        return True

    def _isolate(self, sequence_id: int | None) -> None:
        if self.scheduler is not None:
            self.scheduler.isolate(sequence_id)

    def _drop(self, sequence_id: int) -> None:
        self._remove(sequence_id)
        if self.scheduler is not None:
            self.scheduler.cancel(sequence_id)

    def _remove(self, sequence_id: int, *, is_handover: bool = False) -> None:
        self._active.remove(sequence_id, is_handover=is_handover)
        self._poison_detector.forget(sequence_id)
        self.wake.set()
