"""Delivers the outputs of all engines to the choices that they belong to, and counts their ends.

It holds the unfinished choices. The engines' requests and this know each other by sequence id only.
"""

from collections.abc import Iterable

from coordinator.engine.outputs import EngineOutputs
from coordinator.output.choice_stream import ChoiceStream
from runtime.errors import GrammarError, StagemeshError
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.inference_types import Finish, FinishReason
from scheduler import TokenEvent


class OutputProcessor:
    """The unfinished choices of a coordinator, by sequence id."""

    def __init__(self, metrics: CoordinatorMetrics) -> None:
        self._metrics = metrics
        self._choices: dict[int, ChoiceStream] = {}

    def add(self, choices: Iterable[ChoiceStream]) -> None:
        """Adds choices, before their sequences are enqueued."""
        self._choices.update((choice.sequence_id, choice) for choice in choices)

    def process(self, outputs: EngineOutputs) -> list[int]:
        """Delivers outputs; returns the sequences that a stop string ended.

        The engine must cancel these, because it does not see text.
        """
        choices, now = self._choices, outputs.now
        for sequence_id, num_cached_tokens in outputs.started:
            choices[sequence_id].started(now, num_cached_tokens)
        for scored in outputs.scored:
            choices[scored.sequence_id].push_prompt(scored.tokens)
        stopped = [event.sequence_id for event in outputs.tokens if self._push(event, now)]
        for sequence_id in outputs.finished:
            self.finish(sequence_id, now)
        for sequence_id, error in outputs.failed:
            self._fail(sequence_id, error)
        return stopped

    def finish(self, sequence_id: int, now: float) -> None:
        """Finishes a choice at its length, without a further token."""
        choice = self._choices[sequence_id]
        self._end(choice, choice.finish(FinishReason.LENGTH, now))

    def cancel(self, sequence_ids: Iterable[int], code: str) -> int:
        """Drops and counts the unfinished choices among `sequence_ids`; `code` names the cause."""
        cancelled = [each for each in sequence_ids if each in self._choices]
        for sequence_id in cancelled:
            choice = self._choices.pop(sequence_id)
            self._metrics.requests.labels(choice.api, code).inc()
        return len(cancelled)

    def _push(self, event: TokenEvent, now: float) -> bool:
        """Delivers a token; returns whether it completed a stop string."""
        choice = self._choices[event.sequence_id]
        if event.token.problem:
            self._fail(event.sequence_id, GrammarError(problem=event.token.problem))
            return False
        if choice.last_token is not None:
            self._metrics.inter_token_latency.observe(now - choice.last_token)
        finish = choice.push(event.token, event.finish_reason, now)
        if finish is None:
            return False
        self._end(choice, finish)
        return event.finish_reason is None

    def _end(self, choice: ChoiceStream, finish: Finish) -> None:
        del self._choices[choice.sequence_id]
        _observe_finish(self._metrics, choice.api, finish)

    def _fail(self, sequence_id: int, error: StagemeshError) -> None:
        self._choices[sequence_id].fail(error)
        self.cancel((sequence_id,), error.code)


def _observe_finish(metrics: CoordinatorMetrics, api: str, finish: Finish) -> None:
    """Counts a choice that finished, and observes its lengths and times."""
    metrics.requests.labels(api, finish.reason.value).inc()
    timings, num_tokens = finish.timings, finish.usage.completion_tokens
    metrics.prompt_length.observe(finish.usage.prompt_tokens)
    metrics.generation_length.observe(num_tokens)
    if num_tokens == 0:
        return
    decode_seconds = timings.total_seconds - timings.first_token_seconds
    metrics.time_to_first_token.observe(timings.first_token_seconds)
    metrics.request_seconds.observe(timings.total_seconds)
    metrics.queue_seconds.observe(timings.queue_seconds)
    metrics.prefill_seconds.observe(timings.first_token_seconds - timings.queue_seconds)
    metrics.decode_seconds.observe(decode_seconds)
    if num_tokens > 1:
        metrics.time_per_output_token.observe(decode_seconds / (num_tokens - 1))
