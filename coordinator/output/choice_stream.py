"""Turns one choice's tokens into the text, usage and timings that its client receives."""

from coordinator.output.detokenizer import Detokenizer
from coordinator.output.output_stream import OutputStream, top_pairs
from coordinator.output.stop_strings import StopStrings
from coordinator.security.rate_limits import Account
from runtime.errors import StagemeshError
from runtime.protocol.inference_types import (
    Finish,
    FinishReason,
    PromptToken,
    Timings,
    Usage,
)
from runtime.protocol.step import SampledToken, ScoredToken
from scheduler import SequenceRequest


class OutputText:
    """Detokenizes, and searches stop strings from the token number `min_tokens` on."""

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings, min_tokens: int) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._num_tokens = 0

    @property
    def has_stopped(self) -> bool:
        """Whether a stop string was found, which completes the text."""
        return self._stops.has_stopped

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text that it makes certain."""
        self._num_tokens += 1
        text = self._detokenizer.push(token_id)
        return self._stops.push(text) if self._num_tokens >= self._min_tokens else text

    def finish(self) -> str:
        """Returns the text that was held back."""
        return self._stops.push(self._detokenizer.finish()) + self._stops.finish()


class ChoiceStream:
    """One choice of an admitted prompt, until it is finished, failed or cancelled.

    The scheduler has its tokens; this has what the client sees of them.
    """

    def __init__(
        self,
        request: SequenceRequest,
        number: int,
        text: OutputText,
        output: OutputStream,
        account: Account,
        api: str,
    ) -> None:
        """`number` counts the choices of `output`; `account` is charged for generated tokens."""
        self.request = request
        self.api = api
        # When the latest token arrived, in the clock's seconds.
        self.last_token: float | None = None
        self._number = number
        self._text = text
        self._output = output
        self._account = account
        self._started: float | None = None
        self._first_token: float | None = None
        self._num_tokens = 0
        self._num_cached_tokens = 0
        self._scores_prompt = request.sampling.num_prompt_logprobs is not None
        # The first token has nothing before it.
        self._num_scored = 1

    @property
    def sequence_id(self) -> int:
        """The id of its sequence in the engine."""
        return self.request.sequence_id

    def started(self, now: float, num_cached_tokens: int = 0) -> None:
        """Notes the first step with its prompt; later calls, after a preemption, have no effect."""
        if self._started is not None:
            return
        self._started = now
        self._num_cached_tokens = num_cached_tokens
        if self._scores_prompt:
            first = PromptToken(self.request.prompt_ids[0], None)
            self._output.push_prompt(self._number, (first,))

    def push_prompt(self, tokens: tuple[ScoredToken, ...]) -> None:
        """Delivers the prompt's tokens that were not delivered before a preemption or recovery."""
        fresh = tuple(
            PromptToken(token.token_id, token.logprob, top_pairs(token))
            for token in tokens
            if token.position >= self._num_scored
        )
        if fresh:
            self._num_scored += len(fresh)
            self._output.push_prompt(self._number, fresh)

    def push(self, token: SampledToken, reason: FinishReason | None, now: float) -> Finish | None:
        """Delivers one generated token, and the end with it.

        It ends when `reason` is set, or when its text reaches a stop string. The token of a choice
        that only scores its prompt is discarded.
        """
        if self._first_token is None:
            self._first_token = now
        self.last_token = now
        if self.request.is_score_only:
            return self.finish(FinishReason.LENGTH, now)
        self._num_tokens += 1
        self._account.charge(1)
        # The token that stops generation is reported, its text is not part of the answer.
        stops = reason is FinishReason.STOP
        text = "" if stops else self._text.push(token.token_id)
        self._output.push(self._number, text, token)
        if self._text.has_stopped:
            reason = FinishReason.STOP
        return None if reason is None else self.finish(reason, now)

    def finish(self, reason: FinishReason, now: float) -> Finish:
        """Ends the choice with the text that was held back, its usage and timings."""
        text = self._text.finish()
        if self._text.has_stopped:
            reason = FinishReason.STOP
        prompt_ids = self.request.prompt_ids
        usage = Usage(len(prompt_ids), self._num_tokens, self._num_cached_tokens)
        finish = Finish(reason, usage, self._timings(now))
        self._output.finish(self._number, text, finish)
        return finish

    def fail(self, error: StagemeshError) -> None:
        """Ends the whole request that this choice belongs to."""
        self._output.fail(error)

    def _timings(self, now: float) -> Timings:
        arrival = self.request.arrival
        started = now if self._started is None else self._started
        first_token = now if self._first_token is None else self._first_token
        return Timings(started - arrival, first_token - arrival, now - arrival)
