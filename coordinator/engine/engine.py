"""Owns the requests of one replica: from the waiting line through the steps to the client.

It outlives epochs: requests that no other replica takes wait here while no epoch serves, and go on
where they were when the next one does. It never waits for a client, never talks to a worker itself
and does not choose its requests: `router.py` does. Longer than other files, so that every way
in which a request comes, goes on and leaves stands in one place.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from coordinator.engine.active_requests import ActiveRequests
from coordinator.engine.poison_request_detector import PoisonRequestDetector
from coordinator.engine.step_loop import Clock, StepListener, StepLoop
from coordinator.output.choice_stream import Generation
from coordinator.output.output_processor import OutputProcessor
from coordinator.stage_client.epoch_streams import EpochStreams
from coordinator.telemetry.scheduler_telemetry import SchedulerMetrics, StepMetrics
from runtime.errors import EpochEndedError, RequestCancelledError, StagemeshError
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.inference_types import FinishReason
from scheduler import (
    NO_PROGRESS,
    Policy,
    PolicySnapshot,
    QueueForecast,
    ReplicaLoad,
    Scheduler,
    SchedulerLimits,
    Watchdog,
    make_load,
)


@dataclass(frozen=True, slots=True)
class Handover:
    """A request on its way to another replica: its tokens so far, and the ends at which it ran."""

    generation: Generation
    token_ids: tuple[int, ...]
    num_ends: int


class Engine:
    """One replica's requests and their scheduler; the replica lends it the streams of an epoch."""

    def __init__(
        self,
        replica: int,
        policy: Policy,
        step_seconds: float,
        metrics: CoordinatorMetrics,
        clock: Clock = time.monotonic,
        stall_seconds: float = 10.0,
    ) -> None:
        self.replica = replica
        self.clock = clock
        self.is_draining = False
        self.is_serving = False
        # Told after every change of who may run requests here: its chance to move them.
        self.on_change: Callable[[Engine], None] = lambda _: None
        self.wake = asyncio.Event()
        self.scheduler: Scheduler | None = None
        self.limits: SchedulerLimits | None = None
        self._policy = policy
        self._step_seconds = step_seconds
        self._stall_seconds = stall_seconds
        # How fast the waiting line gets shorter.
        self.queue = QueueForecast()
        self._metrics = metrics
        self._steps = StepMetrics(metrics, replica)
        self._policy_metrics = SchedulerMetrics(metrics, replica)
        self._roster = ActiveRequests(metrics, replica)
        self._detector = PoisonRequestDetector(self._isolate)

    @property
    def takes_requests(self) -> bool:
        """An epoch serves and is meant to go on."""
        return self.is_serving and not self.is_draining

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return self.scheduler.num_running if self.scheduler else 0

    @property
    def num_waiting(self) -> int:
        """Sequences in line, also while no epoch serves."""
        return self.scheduler.num_waiting if self.scheduler else len(self._roster)

    @property
    def num_steps_in_flight(self) -> int:
        """Steps on their way."""
        return self.scheduler.num_steps_in_flight if self.scheduler else 0

    @property
    def num_blocks(self) -> int:
        """KV blocks of the replica; 0 before its first epoch."""
        return self.limits.num_blocks if self.limits else 0

    @property
    def num_blocks_used(self) -> int:
        """KV blocks that sequences hold."""
        return self.scheduler.num_blocks_used if self.scheduler else 0

    @property
    def num_slots_used(self) -> int:
        """Slots that sequences hold."""
        return self.scheduler.num_slots_used if self.scheduler else 0

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens admitted since the start."""
        return self._roster.num_prompt_tokens

    @property
    def num_generated_tokens(self) -> int:
        """Tokens generated since the start."""
        return self._roster.num_generated_tokens

    @property
    def policy_snapshot(self) -> PolicySnapshot:
        """What the policy steers by; nothing before the first epoch."""
        return self.scheduler.policy_snapshot if self.scheduler else PolicySnapshot("", 0)

    def observe_scheduler(self) -> None:
        """Brings the metrics to what the scheduler thinks now."""
        self._policy_metrics.update(self.policy_snapshot)

    @property
    def num_requests(self) -> int:
        """Prompts that are not finished."""
        return len(self._roster)

    @property
    def num_logprobs(self) -> int:
        """Log-probabilities that its requests ask for with each token."""
        return self._roster.num_logprobs

    def load(self) -> ReplicaLoad:
        """What it is busy with, for whoever routes."""
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

    # ---- the dispatcher's side -------------------------------------------------------------------

    def add(self, generation: Generation) -> None:
        """Puts a prompt in line; one that wants nothing computed is finished at once."""
        self._roster.add(generation)
        self._roster.num_prompt_tokens += len(generation.request.prompt_ids)
        if not generation.is_computed:
            self._finish_at_length(generation)
        elif self.scheduler is not None:
            self._schedule(generation)
        self.wake.set()

    def unfinished(self, *, only_waiting: bool = False) -> list[Generation]:
        """Its requests, or those that hold no slot."""
        if not only_waiting or self.scheduler is None:
            return list(self._roster)
        sequences = self.scheduler.unfinished
        return [self._roster[each.sequence_id] for each in sequences if each.allocation is None]

    def withdraw(self, generation: Generation) -> Handover:
        """Lets one of its requests go, to be adopted by another engine."""
        sequence_id = generation.sequence_id
        token_ids = () if self.scheduler is None else self.scheduler.withdraw(sequence_id)
        handover = Handover(generation, token_ids, self._detector.num_ends(sequence_id))
        self._detector.forget(sequence_id)
        self._roster.hand_over(generation)
        self.wake.set()
        return handover

    def adopt(self, handover: Handover) -> None:
        """Goes on with a request from where another engine was."""
        generation = handover.generation
        self._roster.add(generation)
        self._schedule(generation, handover.token_ids)
        if generation in self._roster:
            self._detector.adopt(generation.sequence_id, handover.num_ends)
        self.wake.set()

    def cancel(
        self, generations: Iterable[Generation], code: str = RequestCancelledError.code
    ) -> int:
        """Drops what is here and not finished, and counts it; slots go with the next step."""
        return sum(self._drop(each, code) for each in generations)

    def fail_all(self, error: StagemeshError) -> None:
        """Ends every request with `error`."""
        for generation in self._roster:
            self._fail(generation, error)

    async def drained(self) -> None:
        """Returns once no request is left."""
        await self._roster.empty()

    # ---- the replica's side ----------------------------------------------------------------------

    async def serve(self, streams: EpochStreams, limits: SchedulerLimits) -> None:
        """Never returns: runs the requests over `streams` until the epoch ends."""
        self._begin(limits, streams.num_sent)
        assert self.scheduler is not None
        self.is_serving = True
        self.on_change(self)
        deliveries = OutputProcessor(
            self.scheduler,
            self._roster,
            self._detector,
            self.queue,
            self._steps,
            self._metrics,
            self._fail,
        )
        await self.make_loop(streams, self.scheduler, deliveries).run()

    def make_loop(
        self, streams: EpochStreams, scheduler: Scheduler, listener: StepListener
    ) -> StepLoop:
        """The loop that drives `scheduler` over `streams`, with this engine's clock and wake."""
        watchdog = Watchdog(self._step_seconds, self._stall_seconds)
        return StepLoop(scheduler, streams, self.wake, listener, watchdog, self.clock)

    def drain(self) -> None:
        """Its epoch is meant to end: whoever else runs requests gets what is here."""
        self.is_draining = True
        self.on_change(self)

    def end_epoch(self, cause: StagemeshError, *, is_planned: bool = False) -> bool:
        """Puts everything that ran back in line, but for what ended it running alone.

        Whether there was such a request. A planned end speaks against nobody.
        """
        self.is_serving = self.is_draining = False
        end = EpochEndedError.by(cause)
        self._metrics.epoch_ends.labels(str(self.replica), end.cause).inc()
        if end.cause == NO_PROGRESS and self.scheduler is not None:
            # Nothing ran, so whoever is first in line may be what cannot.
            first = self.scheduler.next_waiting_id(self.clock())
            if first is not None:
                self._detector.started(first)
        poison_id = self._detector.end_epoch(is_planned=is_planned)
        if poison_id is not None:
            num_ends = self._detector.num_ends(poison_id)
            who = f"the request ran at {num_ends} ends, at the last one alone"
            self._fail(self._roster[poison_id], EpochEndedError.by(cause, who))
        if self.limits is not None:
            self._restart(self.limits)
        self.on_change(self)
        return poison_id is not None

    def _begin(self, limits: SchedulerLimits, first_step: int) -> None:
        """Starts an epoch in the scheduler, which continues the numbers of the canary's steps.

        The first time, all queued requests are added.
        """
        self.limits = limits
        if self.scheduler is not None:
            self._restart(limits, first_step)
            return
        self.scheduler = Scheduler(limits, self._policy, first_step)
        for generation in self._roster:
            self._schedule(generation)

    def _restart(self, limits: SchedulerLimits, first_step: int = 0) -> None:
        """Everything waits again, but for what the new limits have no room for."""
        assert self.scheduler is not None
        self.observe_scheduler()
        self._policy_metrics.start_epoch()
        for sequence_id in self.scheduler.restart(limits, first_step):
            self._end_unfit(self._roster[sequence_id], limits)
        self._isolate(self._detector.isolated_id)

    def _end_unfit(self, generation: Generation, limits: SchedulerLimits) -> None:
        """Ends what cannot go on: at its length if its prompt fits, else with the numbers."""
        request = generation.request
        try:
            limits.check_fits(len(request.prompt_ids), request.max_tokens)
        except StagemeshError as error:
            self._fail(generation, error)
        else:
            self._finish_at_length(generation)

    def _finish_at_length(self, generation: Generation) -> None:
        self._roster.finish(generation, generation.finish(FinishReason.LENGTH, self.clock()))
        self._detector.forget(generation.sequence_id)

    def _isolate(self, sequence_id: int | None) -> None:
        if self.scheduler is not None:
            self.scheduler.isolate(sequence_id)

    def _schedule(self, generation: Generation, token_ids: tuple[int, ...] = ()) -> None:
        """Hands a prompt to the scheduler, with no more tokens to generate than the context has.

        Of those it has `token_ids` already, and is finished if they are all that there is room for.
        """
        assert self.scheduler is not None
        assert self.limits is not None
        request = generation.request
        room = self.limits.max_new_tokens(len(request.prompt_ids))
        request = replace(request, max_tokens=max(1, min(request.max_tokens, room)))
        try:
            self.limits.check_fits(len(request.prompt_ids), request.max_tokens)
        except StagemeshError as error:
            self._fail(generation, error)
            return
        if len(token_ids) < request.max_tokens:
            self.scheduler.resume(request, token_ids)
        else:
            self._finish_at_length(generation)

    def _fail(self, generation: Generation, error: StagemeshError) -> None:
        generation.fail(error)
        self._drop(generation, error.code)

    def _drop(self, generation: Generation, code: str) -> bool:
        """Forgets a generation that is not finished; False for one that is."""
        if generation not in self._roster:
            return False
        self._roster.drop(generation, code)
        self._detector.forget(generation.sequence_id)
        if self.scheduler is not None:
            self.scheduler.cancel(generation.sequence_id)
        self.wake.set()
        return True
