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
    SequenceStart,
)
from coordinator.engine.step_loop import Clock, StepLoop
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
        # How fast the queue gets shorter.
        self.queue_forecast = QueueForecast()
        self._policy = policy
        self._step_seconds = step_seconds
        self._stall_seconds = stall_seconds
        self._process_outputs = process_outputs
        self._metrics = metrics
        self._step_metrics = StepMetrics(metrics, replica)
        self._scheduler_metrics = SchedulerMetrics(metrics, replica)
        self._requests = ActiveRequests(replica, metrics, process_outputs, clock, self.wake)

    @property
    def takes_requests(self) -> bool:
        """Whether an epoch serves that is not being drained."""
        return self.is_serving and not self.is_draining

    @property
    def limits(self) -> SchedulerLimits | None:
        """The limits of the latest epoch; None before the first one."""
        return self._requests.limits

    @property
    def policy_snapshot(self) -> PolicySnapshot:
        """The policy's snapshot; empty before the first epoch."""
        scheduler = self._requests.scheduler
        return scheduler.policy_snapshot if scheduler else PolicySnapshot("", 0)

    def update_metrics(self) -> None:
        """Sets the scheduler's metrics to its snapshot."""
        self._scheduler_metrics.update(self.policy_snapshot)

    def stats(self) -> EngineStats:
        """The counts of now; without an epoch so far, every request waits."""
        requests, scheduler, limits = self._requests, self._requests.scheduler, self.limits
        return EngineStats(
            num_requests=len(requests),
            num_running=scheduler.num_running if scheduler else 0,
            num_waiting=scheduler.num_waiting if scheduler else len(requests),
            num_steps_in_flight=scheduler.num_steps_in_flight if scheduler else 0,
            num_blocks=limits.num_blocks if limits else 0,
            num_blocks_used=scheduler.num_blocks_used if scheduler else 0,
            num_slots_used=scheduler.num_slots_used if scheduler else 0,
            num_logprobs=requests.num_logprobs,
            num_prompt_tokens=requests.num_prompt_tokens,
            num_generated_tokens=requests.num_generated_tokens,
        )

    def load(self) -> ReplicaLoad:
        """The load as the router compares it."""
        scheduler, limits = self._requests.scheduler, self.limits
        if scheduler is None or limits is None:
            return ReplicaLoad(self.replica, takes_requests=False)
        stages = scheduler.policy_snapshot.stages
        return make_load(
            self.replica,
            self.takes_requests,
            scheduler.unfinished,
            limits,
            scheduler.num_blocks_used,
            max((stage.costs.last_token for stage in stages), default=0.0),
        )

    # ---- requests, for the router ----------------------------------------------------------------

    def add(self, request: SequenceRequest) -> None:
        """Enqueues a new request."""
        self._requests.add(request)

    def adopt(self, handover: Handover) -> None:
        """Continues a request of another engine; only after the first epoch has begun."""
        self._requests.adopt(handover)

    def unfinished(self, *, only_waiting: bool = False) -> list[SequenceRequest]:
        """All unfinished requests, or only those without a slot."""
        return self._requests.without_slot() if only_waiting else list(self._requests)

    def withdraw(self, sequence_id: int) -> Handover:
        """Removes a request, for another engine to adopt."""
        return self._requests.withdraw(sequence_id)

    def cancel(self, sequence_ids: Iterable[int]) -> None:
        """Drops the requests that are unfinished here; the next step releases their slots."""
        self._requests.cancel(sequence_ids)

    def fail_all(self, error: StagemeshError) -> None:
        """Ends every request with `error`."""
        for request in self._requests:
            self._requests.fail(request.sequence_id, error)

    async def drained(self) -> None:
        """Returns once no request is left."""
        await self._requests.wait_idle()

    # ---- epochs, for the replica -----------------------------------------------------------------

    async def serve(self, streams: EpochStreams, limits: SchedulerLimits) -> None:
        """Never returns: runs the requests over `streams` until the epoch ends."""
        scheduler = self._begin(limits, streams.num_sent)
        self.is_serving = True
        self.on_change(self)
        loop = self.make_loop(streams, scheduler)
        while True:
            for events in loop.take_results():
                self._requests.apply(events)
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
        detector, scheduler = self._requests.poison_detector, self._requests.scheduler
        if end.cause == NO_PROGRESS and scheduler is not None:
            # No step was made, so the head of the queue may be the request that cannot run.
            first = scheduler.next_waiting_id(self.clock())
            if first is not None:
                detector.started(first)
        poison_id = detector.end_epoch(is_planned=is_planned)
        if poison_id is not None:
            num_ends = detector.num_ends(poison_id)
            detail = f"the request ran at {num_ends} ends, at the last one alone"
            self._requests.fail(poison_id, EpochEndedError.caused_by(cause, detail))
        if self.limits is not None:
            self._begin(self.limits, first_step=0)
        self.on_change(self)
        return poison_id is not None

    def _begin(self, limits: SchedulerLimits, first_step: int) -> Scheduler:
        """Starts an epoch in the scheduler, in which all requests wait; numbers its steps."""
        if self._requests.scheduler is not None:
            self.update_metrics()
            self._scheduler_metrics.start_epoch()
        return self._requests.begin_epoch(limits, self._policy, first_step)

    def _report_start(self, step: Step, now: float, scheduler: Scheduler) -> None:
        """Reports the sequences that get a slot with `step`, which is about to be sent."""
        started: list[SequenceStart] = []
        for opening in step.opened_slots:
            sequence_id = scheduler.sequence_in_slot(opening.slot)
            self._requests.poison_detector.started(sequence_id)
            self.queue_forecast.started(now)
            started.append(SequenceStart(sequence_id, len(opening.cached_token_ids)))
        if started:
            self._process_outputs(EngineOutputs(now, started=tuple(started)))
        self._step_metrics.observe(step, scheduler.num_preemptions)
        self._step_metrics.observe_prefix_cache(
            scheduler.num_queried_tokens, scheduler.num_hit_tokens
        )
