"""Owns the way from one choice's tokens to the text that its client may see."""

from coordinator.output.detokenizer import Detokenizer
from coordinator.output.stop_strings import StopStrings


class OutputText:
    """Detokenizes, and cuts at a stop string once `min_tokens` tokens are there."""

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings, min_tokens: int) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._num_tokens = 0

    @property
    def has_stopped(self) -> bool:
        """A stop string was found: the answer is complete."""
        return self._stops.has_stopped

    def push(self, token_id: int) -> str:
        """The text that one more token makes certain."""
        self._num_tokens += 1
        text = self._detokenizer.push(token_id)
        return self._stops.push(text) if self._num_tokens >= self._min_tokens else text

    def finish(self) -> str:
        """The text that was held back, now that no more tokens come."""
        return self._stops.push(self._detokenizer.finish()) + self._stops.finish()
