"""Owns what the step loop tells of one epoch: steps to the figures, tokens to their clients.

It listens; what a sequence's end means beyond its client is the engine's.
"""

from collections.abc import Callable

from coordinator.engine.active_requests import ActiveRequests
from coordinator.engine.poison_request_detector import PoisonRequestDetector
from coordinator.output.choice_stream import Generation
from coordinator.telemetry.scheduler_telemetry import StepMetrics
from runtime.errors import GrammarError, StagemeshError
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.step import Step
from scheduler import QueueForecast, Scheduler, ScoreEvent, TokenEvent


class OutputProcessor:
    """The listener of the requests' step loop, as long as one epoch serves."""

    def __init__(
        self,
        scheduler: Scheduler,
        roster: ActiveRequests,
        detector: PoisonRequestDetector,
        queue: QueueForecast,
        steps: StepMetrics,
        metrics: CoordinatorMetrics,
        fail: Callable[[Generation, StagemeshError], None],
    ) -> None:
        self._scheduler = scheduler
        self._roster = roster
        self._detector = detector
        self._queue = queue
        self._steps = steps
        self._metrics = metrics
        self._fail = fail

    def on_step(self, step: Step, now: float) -> None:
        """Notes what a step carries, and whose prompts for the first time."""
        scheduler = self._scheduler
        for opening in step.opened_slots:
            sequence_id = scheduler.sequence_in_slot(opening.slot)
            self._detector.started(sequence_id)
            self._queue.started(now)
            self._roster[sequence_id].started(now, len(opening.cached_token_ids))
        self._steps.observe(step, scheduler.num_preemptions)
        self._steps.observe_prefix_cache(scheduler.num_queried_tokens, scheduler.num_hit_tokens)

    def on_scored(self, event: ScoreEvent) -> None:
        """Delivers log-probabilities of a prompt's tokens to its client's stream."""
        self._roster[event.sequence_id].push_prompt(event.tokens)

    def on_token(self, event: TokenEvent, now: float) -> None:
        """Delivers a token to its client's stream."""
        generation = self._roster[event.sequence_id]
        if event.token.problem:
            self._fail(generation, GrammarError(problem=event.token.problem))
            return
        if generation.request.max_tokens:  # else only its prompt's log-probabilities are wanted
            self._roster.count_token()
        if generation.last_token is not None:
            self._metrics.inter_token_latency.observe(now - generation.last_token)
        finish = generation.push(event.token, event.finish_reason, now)
        self._detector.made_progress(event.sequence_id)
        if finish is not None:
            self._roster.finish(generation, finish)
            self._detector.forget(event.sequence_id)
            if event.finish_reason is None:  # a stop string, of which the scheduler knows nothing
                self._scheduler.cancel(event.sequence_id)
