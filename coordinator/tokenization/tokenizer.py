"""Text to token ids and chat messages to text, exactly as Transformers does both.

Owns the model's tokenizer and chat template. Imports no torch: `AutoTokenizer` would, the class
behind it does not. Token ids back to text is `coordinator/output/detokenizer.py`.
"""

import asyncio
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import jinja2
from tokenizers.models import BPE
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from runtime.errors import ChatTemplateError, ModelConfigError, TokenOutOfVocabularyError
from runtime.model_config.model_config import ModelConfig
from runtime.protocol.inference_types import ChatMessage

if TYPE_CHECKING:
    import tokenizers

# Longer texts are tokenized in a thread: this many characters take a millisecond or two.
_INLINE_CHARACTERS: Final = 1_000

# Errors of a template, which is code: Jinja's own errors, and Python's from its expressions.
_TEMPLATE_ERRORS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class Tokenizer:
    """One model's tokenizer; it may be used from several threads at once."""

    def __init__(self, backend: TokenizersBackend, vocab_size: int) -> None:
        self._transformers = backend
        self._tokenizer: tokenizers.Tokenizer = backend.backend_tokenizer
        self._vocab_size = vocab_size
        self._longest_token = _longest_token(self._tokenizer)
        self._special_ids = frozenset(
            token_id
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        byte_tokens = (self._tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        self._byte_ids = frozenset(byte_tokens) - {None}
        # A short text, for `decode_after_text`.
        self._leading_ids = list(self._tokenizer.encode("a", add_special_tokens=False).ids)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig) -> "Tokenizer":
        """Reads tokenizer.json, tokenizer_config.json and the chat template of a model folder.

        Raises `ModelConfigError` where they are missing or broken.
        """
        if not (folder / "tokenizer.json").is_file():
            raise ModelConfigError(folder=str(folder), problem="there is no tokenizer.json")
        try:
            backend = TokenizersBackend.from_pretrained(folder, local_files_only=True)
        except Exception as exc:  # the Rust library raises nothing finer
            raise ModelConfigError(
                folder=str(folder), problem=f"the tokenizer cannot be read: {exc!r}"
            ) from exc
        return cls(backend, config.vocab_size)

    @property
    def vocab_size(self) -> int:
        """Rows of the model's embedding: every token id is below it."""
        return self._vocab_size

    def fewest_tokens(self, num_characters: int) -> int:
        """The fewest tokens that a text of `num_characters` can have; 0 if unknown."""
        return num_characters // self._longest_token if self._longest_token else 0

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a raw prompt, with the special tokens that the model wants around one.

        Raises `TokenOutOfVocabularyError` where the tokenizer knows a token that the model lacks.
        """
        return self._encode(text, add_special_tokens=True)

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> tuple[int, ...]:
        """Ids of a conversation; all special tokens come from the template and the messages."""
        text = self.render_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        return self._encode(text, add_special_tokens=False)

    async def encode_async(self, text: str) -> tuple[int, ...]:
        """`encode`, in a thread where the text is long."""
        return await _run(len(text), lambda: self.encode(text))

    async def encode_chat_async(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> tuple[int, ...]:
        """`encode_chat`, in a thread where the conversation is long."""
        # A message costs time also when it is empty.
        num_characters = sum(len(m.role) + len(m.content) + 1 for m in messages)
        encode = partial(
            self.encode_chat,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        return await _run(num_characters, encode)

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The conversation as the model's template writes it, rendered in Jinja's sandbox.

        With `continue_final_message` it stops behind the last message's content.

        Raises `ChatTemplateError`, naming the template's line, where there is no template, it is
        broken, or it refuses these messages.
        """
        if not self._transformers.chat_template:
            raise ChatTemplateError(
                problem="this model has none; send the prompt as text (infer --raw) or as token ids"
            )
        conversation = [{"role": m.role, "content": m.content} for m in messages]
        try:
            rendered = self._transformers.apply_chat_template(
                conversation,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
        except _TEMPLATE_ERRORS as exc:
            raise ChatTemplateError(problem=_describe(exc)) from exc
        return str(rendered)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of all tokens at once, without special ones; bytes that are no text become �."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def is_text(self, token_id: int) -> bool:
        """Whether the token shows in decoded text: known and not special."""
        return (
            token_id not in self._special_ids and self._tokenizer.id_to_token(token_id) is not None
        )

    def is_byte(self, token_id: int) -> bool:
        """Whether the token is one raw byte (`<0x0A>`), whose text depends on its neighbours."""
        return token_id in self._byte_ids

    def written(self, token_id: int) -> str:
        """The token as the vocabulary writes it; empty for an id that the tokenizer lacks."""
        return self._tokenizer.id_to_token(token_id) or ""

    def decode_after_text(self, token_id: int) -> str:
        """What the token adds to a text; alone, some tokenizers would take its space away."""
        before = self._tokenizer.decode(self._leading_ids, skip_special_tokens=True)
        both = self._tokenizer.decode([*self._leading_ids, token_id], skip_special_tokens=True)
        return both[len(before) :]

    def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        # Not `encode`, which holds the interpreter's lock, and with it the event loop.
        (encoding,) = self._tokenizer.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        ids = encoding.ids
        largest = max(ids, default=0)
        if largest >= self._vocab_size:
            raise TokenOutOfVocabularyError(token_id=largest, vocab_size=self._vocab_size)
        return tuple(ids)


async def _run(num_characters: int, encode: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
    if num_characters <= _INLINE_CHARACTERS:
        # A request may hold many short texts: the event loop gets its turn between them.
        await asyncio.sleep(0)
        return encode()
    return await asyncio.to_thread(encode)


def _longest_token(tokenizer: "tokenizers.Tokenizer") -> int:
    """Characters of the longest token; 0 where one token may stand for text of any length."""
    model = tokenizer.model
    is_whole = isinstance(model, BPE) and (model.byte_fallback or model.unk_token is None)
    return max(map(len, tokenizer.get_vocab())) if is_whole else 0


def _describe(exc: Exception) -> str:
    """The error with its line in the template, which Jinja leaves in the traceback."""
    line = exc.lineno if isinstance(exc, jinja2.TemplateSyntaxError) else None
    for frame in traceback.extract_tb(exc.__traceback__):
        if frame.filename == "<template>":
            line = frame.lineno
    message = str(exc) or type(exc).__name__
    return message if line is None else f"line {line}: {message}"
