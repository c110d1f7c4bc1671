"""Searches stop strings in a growing text, and withholds text that may be part of one.

The result does not depend on how the text is split. The stop string that is complete first ends the
text; of several complete at the same character, the longest. Each is matched by the automaton of
Knuth, Morris and Pratt ("Fast pattern matching in strings", 1977), so that the cost of a character
does not depend on the withheld text.
"""

from collections.abc import Sequence


class StopStrings:
    """The filter of one choice's text; `has_stopped` is set once a stop string was found."""

    def __init__(self, stops: Sequence[str], include_stop: bool) -> None:
        """Stop strings are not empty; with `include_stop` the one found stays in the text."""
        self.has_stopped = False
        self._include_stop = include_stop
        self._automata = [_Automaton(stop) for stop in stops]
        self._withheld = ""

    def push(self, text: str) -> str:
        """Adds text; returns the text that is certain, nothing after a stop string."""
        if self.has_stopped or not self._automata:
            return "" if self.has_stopped else text
        num_before = len(self._withheld)
        self._withheld += text
        for offset, character in enumerate(text):
            for automaton in self._automata:
                automaton.advance(character)
            lengths = [automaton.length for automaton in self._automata if automaton.is_complete]
            if lengths:
                return self._stop(num_before + offset + 1, max(lengths))
        num_certain = len(self._withheld) - max(a.num_matched for a in self._automata)
        certain, self._withheld = self._withheld[:num_certain], self._withheld[num_certain:]
        return certain

    def finish(self) -> str:
        """Returns the withheld text at the end of the input."""
        rest, self._withheld = self._withheld, ""
        return rest

    def _stop(self, end: int, length: int) -> str:
        self.has_stopped = True
        certain = self._withheld[: end if self._include_stop else end - length]
        self._withheld = ""
        return certain


class _Automaton:
    """How much of one stop string the text ends with."""

    def __init__(self, stop: str) -> None:
        self.num_matched = 0
        self._stop = stop
        self._fallbacks = _fallbacks(stop)

    @property
    def length(self) -> int:
        """Characters of the stop string."""
        return len(self._stop)

    @property
    def is_complete(self) -> bool:
        """The text ends with the whole stop string."""
        return self.num_matched == len(self._stop)

    def advance(self, character: str) -> None:
        """The text has one more character; not to be called once complete."""
        while self.num_matched and self._stop[self.num_matched] != character:
            self.num_matched = self._fallbacks[self.num_matched - 1]
        self.num_matched += self._stop[self.num_matched] == character


def _fallbacks(stop: str) -> list[int]:
    """For each prefix, the length of the longest shorter prefix that it ends with."""
    fallbacks = [0]
    for character in stop[1:]:
        length = fallbacks[-1]
        while length and stop[length] != character:
            length = fallbacks[length - 1]
        fallbacks.append(length + (stop[length] == character))
    return fallbacks
