"""Owns one prompt's way through the engine: its text, its timings and what its client is told."""

from coordinator.detokenizer import Detokenizer
from coordinator.output import OutputStream
from coordinator.requests import Finish, Timings, Usage
from runtime.errors import StagemeshError
from runtime.step import SampledToken
from scheduler import FinishReason, SequenceRequest


class Generation:
    """One prompt that was admitted; lives until it is finished, failed or cancelled.

    The scheduler holds the truth about its tokens; this holds what the client sees of them.
    """

    def __init__(
        self, request: SequenceRequest, index: int, detokenizer: Detokenizer, output: OutputStream
    ) -> None:
        self.request = request
        self.num_epoch_ends = 0
        self._index = index
        self._detokenizer = detokenizer
        self._output = output
        self._started: float | None = None
        self._first_token: float | None = None
        self._num_tokens = 0

    @property
    def sequence_id(self) -> int:
        """The name under which the scheduler knows it."""
        return self.request.sequence_id

    def started(self, now: float) -> None:
        """A step carries its prompt; only the first call counts."""
        if self._started is None:
            self._started = now

    def push(self, token: SampledToken, reason: FinishReason | None, now: float) -> Finish | None:
        """Delivers one generated token, and the end with it when `reason` is set."""
        if self._first_token is None:
            self._first_token = now
        self._num_tokens += 1
        # The token that stops generation is reported, its text is not part of the answer.
        stops = reason is FinishReason.STOP
        text = "" if stops else self._detokenizer.push(token.token_id)
        self._output.push(self._index, text, token)
        return None if reason is None else self.finish(reason, now)

    def finish(self, reason: FinishReason, now: float) -> Finish:
        """Ends the prompt's output with what the detokenizer still held, usage and timings."""
        usage = Usage(len(self.request.prompt_ids), self._num_tokens)
        finish = Finish(reason, usage, self._timings(now))
        self._output.finish(self._index, self._detokenizer.finish(), finish)
        return finish

    def fail(self, error: StagemeshError) -> None:
        """Ends the request that this prompt belongs to."""
        self._output.fail(error)

    def _timings(self, now: float) -> Timings:
        arrival = self.request.arrival
        started = now if self._started is None else self._started
        first_token = now if self._first_token is None else self._first_token
        return Timings(started - arrival, first_token - arrival, now - arrival)
