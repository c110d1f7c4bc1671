"""Owns one choice's way through the engine: its text, its timings and what its client is told."""

from coordinator.output.output_stream import OutputStream, top_pairs
from coordinator.output.output_text import OutputText
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


class Generation:
    """One choice of a prompt that was admitted; lives until it is finished, failed or cancelled.

    The scheduler holds the truth about its tokens; this holds what the client sees of them.
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
        """`number` is the choice's in `output`; `account` pays for its tokens."""
        self.request = request
        self.api = api
        # When its latest token came, in the clock's seconds.
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
        """The name under which the scheduler knows it."""
        return self.request.sequence_id

    @property
    def is_computed(self) -> bool:
        """Whether it needs any step: tokens are wanted, or the prompt's log-probabilities."""
        return self.request.max_tokens > 0 or self._scores_prompt

    def started(self, now: float, num_cached_tokens: int = 0) -> None:
        """A step carries its prompt, but for what is cached; only the first call counts."""
        if self._started is not None:
            return
        self._started = now
        self._num_cached_tokens = num_cached_tokens
        if self._scores_prompt:
            first = PromptToken(self.request.prompt_ids[0], None)
            self._output.push_prompt(self._number, (first,))

    def push_prompt(self, tokens: tuple[ScoredToken, ...]) -> None:
        """Delivers the prompt's tokens that were not told before a preemption or a recovery."""
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

        It ends when `reason` is set, or here, when its text comes to a stop string. Where only the
        prompt was wanted, the one token that the scheduler makes all the same is left out.
        """
        if self._first_token is None:
            self._first_token = now
        self.last_token = now
        if self.request.max_tokens == 0:
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
        """Ends the choice's output with the text that was held back, usage and timings."""
        text = self._text.finish()
        if self._text.has_stopped:
            reason = FinishReason.STOP
        prompt_ids = self.request.prompt_ids
        usage = Usage(len(prompt_ids), self._num_tokens, self._num_cached_tokens)
        finish = Finish(reason, usage, self._timings(now))
        self._output.finish(self._number, text, finish)
        return finish

    def fail(self, error: StagemeshError) -> None:
        """Ends the request that this choice belongs to."""
        self._output.fail(error)

    def _timings(self, now: float) -> Timings:
        arrival = self.request.arrival
        started = now if self._started is None else self._started
        first_token = now if self._first_token is None else self._first_token
        return Timings(started - arrival, first_token - arrival, now - arrival)
