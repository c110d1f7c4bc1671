"""Bytes and names of single tokens, for log-probabilities."""

from collections.abc import Iterator
from functools import cache
from typing import Final

from coordinator.tokenization.tokenizer import Tokenizer

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


class TokenBytes:
    """The bytes of single tokens; those of an answer's tokens make up its text.

    The bytes of a token that is part of a character are known as well.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {}

    def raw(self, token_id: int) -> bytes:
        """The token's bytes; a special token's are its name, one outside the tokenizer has none."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._read(token_id)
        return known

    def name(self, token_id: int) -> str:
        """The token's text, or `bytes:` and its bytes where they are no text."""
        raw = self.raw(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _read(self, token_id: int) -> bytes:
        written = self._tokenizer.written(token_id)
        if not self._tokenizer.is_text(token_id):
            return written.encode()
        if self._tokenizer.is_byte(token_id):
            return bytes([int(written[3:5], 16)])
        text = self._tokenizer.decode_after_text(token_id)
        if _REPLACEMENT not in text:
            return text.encode()
        # Part of a character, in the letters that byte-level vocabularies have for bytes.
        letters = _byte_letters()
        if all(letter in letters for letter in written):
            return bytes(letters[letter] for letter in written)
        return text.encode()


@cache
def _byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others follow 255.

    From `bytes_to_unicode` in https://github.com/openai/gpt-2/blob/master/src/encoder.py.
    """
    return {chr(letter): byte for byte, letter in _letters()}


def _letters() -> Iterator[tuple[int, int]]:
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    num_others = 0
    for byte in range(256):
        if byte in printable:
            yield byte, byte
        else:
            yield byte, 256 + num_others
            num_others += 1
