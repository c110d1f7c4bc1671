"""Token ids to text while they come, never showing half a character.

Owns nothing but the tail of one stream. All pieces together equal `Tokenizer.decode` of all tokens
at once, also where a character is spread over tokens or the bytes are no text at all.
"""

from typing import Final

from coordinator.tokenizer import Tokenizer

# Kept of the stream, so that a push costs the same at any length. A character has at most four
# bytes, so a cut this far back cannot change what comes after the text that was returned.
_KEPT_TOKENS: Final = 8

_INCOMPLETE: Final = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """The text of one sequence, token by token.

    Two things are uncertain until more is known and are held back: a last � (the bytes of a
    character that may go on), and a run of raw byte tokens (the decoder reads a run as a whole, and
    one bad byte turns all of it into �).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tail_ids: list[int] = []
        self._num_returned = 0

    def push(self, token_id: int) -> str:
        """The text that this token makes certain; often its own, or nothing."""
        if not self._tokenizer.is_text(token_id):
            return ""
        self._tail_ids.append(token_id)
        if self._tokenizer.is_byte(token_id):
            return ""
        text = self._tokenizer.decode(self._tail_ids)
        num_certain = _num_certain(text)
        new_text = text[self._num_returned : num_certain]
        self._num_returned = num_certain
        if len(self._tail_ids) >= 2 * _KEPT_TOKENS:
            self._tail_ids = self._tail_ids[-_KEPT_TOKENS:]
            self._num_returned = _num_certain(self._tokenizer.decode(self._tail_ids))
        return new_text

    def finish(self) -> str:
        """The rest; what is no text by now never will be, and becomes �."""
        text = self._tokenizer.decode(self._tail_ids)[self._num_returned :]
        self._tail_ids = []
        self._num_returned = 0
        return text


def _num_certain(text: str) -> int:
    return len(text) - text.endswith(_INCOMPLETE)
