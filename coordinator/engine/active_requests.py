"""Holds the unfinished requests of one engine: gives them to the scheduler, reports how they end.

Requests stay here over epochs, also before the first one, when there is no scheduler.
"""

import asyncio
from collections.abc import Iterable, Iterator

from coordinator.engine.outputs import EngineOutputs, Handover, ProcessOutputs, SequenceFailure
from coordinator.engine.poison_request_detector import PoisonRequestDetector
from coordinator.engine.step_loop import Clock, StepEvents
from runtime.errors import StagemeshError
from runtime.metrics.declarations import CoordinatorMetrics
from scheduler import Policy, Scheduler, SchedulerLimits, SequenceRequest


class ActiveRequests:
    """The unfinished requests of one engine, by sequence id, and their scheduler."""

    def __init__(
        self,
        replica: int,
        metrics: CoordinatorMetrics,
        process_outputs: ProcessOutputs,
        clock: Clock,
        wake: asyncio.Event,
    ) -> None:
        """`wake` is set whenever the scheduler may have other work than before."""
        # Set by the first epoch.
        self.scheduler: Scheduler | None = None
        self.limits: SchedulerLimits | None = None
        self.poison_detector = PoisonRequestDetector(self._isolate)
        self.num_logprobs = 0
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self._metrics = metrics
        self._ended = metrics.replica_requests.labels(str(replica))
        self._handed_over = metrics.handovers.labels(str(replica))
        self._process_outputs = process_outputs
        self._clock = clock
        self._wake = wake
        self._requests: dict[int, SequenceRequest] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._requests

    def __iter__(self) -> Iterator[SequenceRequest]:
        """Iterates over a copy, so that the loop may remove requests."""
        return iter(tuple(self._requests.values()))

    async def wait_idle(self) -> None:
        """Returns once no request is left."""
        await self._idle.wait()

    # ---- requests that come and go ---------------------------------------------------------------

    def add(self, request: SequenceRequest) -> None:
        """Enqueues a new request."""
        self._insert(request)
        self.num_prompt_tokens += len(request.prompt_ids)
        if self.scheduler is not None:
            self._schedule(request)

    def adopt(self, handover: Handover) -> None:
        """Continues a request of another engine; only after the first epoch has begun."""
        request = handover.request
        self._insert(request)
        self._schedule(request, handover.token_ids)
        if request.sequence_id in self:
            self.poison_detector.adopt(request.sequence_id, handover.num_ends)

    def without_slot(self) -> list[SequenceRequest]:
        """The requests that wait for a slot; all of them before the first epoch."""
        if self.scheduler is None:
            return list(self)
        sequences = self.scheduler.unfinished
        return [self._requests[each.sequence_id] for each in sequences if each.allocation is None]

    def withdraw(self, sequence_id: int) -> Handover:
        """Removes a request, for another engine to adopt."""
        token_ids = () if self.scheduler is None else self.scheduler.withdraw(sequence_id)
        num_ends = self.poison_detector.num_ends(sequence_id)
        handover = Handover(self._requests[sequence_id], token_ids, num_ends)
        self._remove(sequence_id, is_handover=True)
        return handover

    def cancel(self, sequence_ids: Iterable[int]) -> None:
        """Drops the requests that are unfinished here; the next step releases their slots."""
        for sequence_id in sequence_ids:
            if sequence_id in self:
                self._drop(sequence_id)

    def fail(self, sequence_id: int, error: StagemeshError) -> None:
        """Ends a request with `error`."""
        failure = SequenceFailure(sequence_id, error)
        self._process_outputs(EngineOutputs(self._clock(), failed=(failure,)))
        self._drop(sequence_id)

    # ---- epochs and steps ------------------------------------------------------------------------

    def begin_epoch(self, limits: SchedulerLimits, policy: Policy, first_step: int) -> Scheduler:
        """Has all requests wait again, for steps from `first_step` on; ends those that do not fit.

        `policy` is used by the first call.
        """
        self.limits = limits
        if self.scheduler is None:
            self.scheduler = Scheduler(limits, policy, first_step)
            for request in self:
                self._schedule(request)
            return self.scheduler
        for sequence_id in self.scheduler.restart(limits, first_step):
            request = self._requests[sequence_id]
            self._end_if_unfit(request, request.max_tokens)
        self._isolate(self.poison_detector.isolated_id)
        return self.scheduler

    def apply(self, events: StepEvents) -> None:
        """Reports the outputs of one step and removes the sequences that ended with it."""
        stopped = self._process_outputs(
            EngineOutputs(events.now, scored=events.scored, tokens=events.tokens)
        )
        num_tokens = 0
        for sequence_id, token, finish_reason in events.tokens:
            if not token.problem:
                num_tokens += not self._requests[sequence_id].is_score_only
                self.poison_detector.made_progress(sequence_id)
            if token.problem or finish_reason is not None:
                self._remove(sequence_id)
        self.num_generated_tokens += num_tokens
        self._metrics.generated_tokens.inc(num_tokens)
        self.cancel(stopped)

    def _schedule(self, request: SequenceRequest, token_ids: tuple[int, ...] = ()) -> None:
        """Passes a request that has generated `token_ids` to the scheduler, or ends it."""
        assert self.scheduler is not None
        if not self._end_if_unfit(request, len(token_ids)):
            self.scheduler.resume(request, token_ids)
        self._wake.set()

    def _end_if_unfit(self, request: SequenceRequest, num_generated: int) -> bool:
        """Ends a request that has no room left under the limits; returns whether it did.

        It fails if its prompt does not fit, and finishes if only the next token does not.
        """
        assert self.limits is not None
        num_prompt_tokens = len(request.prompt_ids)
        try:
            self.limits.check_fits(num_prompt_tokens, request.max_tokens)
        except StagemeshError as error:
            self.fail(request.sequence_id, error)
            return True
        final_len = self.limits.final_len(num_prompt_tokens, request.max_tokens)
        if num_prompt_tokens + num_generated < final_len:
            return False
        self._process_outputs(EngineOutputs(self._clock(), finished=(request.sequence_id,)))
        self._remove(request.sequence_id)
        return True

    def _isolate(self, sequence_id: int | None) -> None:
        if self.scheduler is not None:
            self.scheduler.isolate(sequence_id)

    def _drop(self, sequence_id: int) -> None:
        self._remove(sequence_id)
        if self.scheduler is not None:
            self.scheduler.cancel(sequence_id)

    def _insert(self, request: SequenceRequest) -> None:
        self._requests[request.sequence_id] = request
        self.num_logprobs += request.sampling.num_logprobs
        self._idle.clear()

    def _remove(self, sequence_id: int, *, is_handover: bool = False) -> None:
        request = self._requests.pop(sequence_id)
        self.num_logprobs -= request.sampling.num_logprobs
        (self._handed_over if is_handover else self._ended).inc()
        self.poison_detector.forget(sequence_id)
        self._wake.set()
        if not self._requests:
            self._idle.set()
