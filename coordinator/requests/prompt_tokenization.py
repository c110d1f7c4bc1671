"""Tokenizes prompts and decodes token ids; large inputs in a thread, off the event loop."""

import asyncio
from collections.abc import Sequence

from coordinator.requests.validation import check_token_ids
from coordinator.tokenization.model_info import ServedModel
from runtime.errors import PromptTooLongError
from runtime.protocol.inference_types import Chat, Prompt, TokenIds

# Up to this number, ids are decoded on the event loop, in one or two milliseconds.
_INLINE_TOKENS = 2_000


async def token_ids(
    prompt: Prompt, model: ServedModel, max_tokens: int | None = None
) -> tuple[int, ...]:
    """The token ids of a prompt; empty for an empty text.

    Raises `PromptTooLongError` before tokenization for a text that must have more than `max_tokens`
    tokens by its length; the caller still has to check the number of tokens.
    """
    if isinstance(prompt, TokenIds):
        return prompt.ids
    fewest = _fewest_tokens(prompt, model)
    if max_tokens is not None and fewest > max_tokens:
        raise PromptTooLongError(num_tokens=fewest, max_tokens=max_tokens, is_minimum=True)
    if isinstance(prompt, Chat):
        return await model.tokenizer.encode_chat_async(
            prompt.messages,
            add_generation_prompt=prompt.opens_answer,
            continue_final_message=prompt.continue_final_message,
        )
    return await model.tokenizer.encode_async(prompt) if prompt else ()


def _fewest_tokens(prompt: str | Chat, model: ServedModel) -> int:
    """A lower bound; each message of a conversation has at least one token."""
    if isinstance(prompt, str):
        return model.tokenizer.fewest_tokens(len(prompt))
    num_characters = sum(len(message.content) for message in prompt.messages)
    return max(len(prompt.messages), model.tokenizer.fewest_tokens(num_characters))


async def detokenize(ids: Sequence[int], model: ServedModel) -> str:
    """The text of token ids, special ones left out; raises `TokenOutOfVocabularyError`."""
    check_token_ids(ids, model.config.vocab_size)
    if len(ids) <= _INLINE_TOKENS:
        return model.tokenizer.decode(ids)
    return await asyncio.to_thread(model.tokenizer.decode, ids)
