"""What the tests of outside clients ask, and Transformers' answer to it."""

from openai.types.chat import ChatCompletionMessageParam

from tests.integration.tiny_chat import TinyChat

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "the client"}]
PROMPT = [5, 6, 7, 8]
IGNORE_EOS = {"ignore_eos": True}


def greedy(tiny_chat: TinyChat, num_tokens: int) -> str:
    """What Transformers answers to `PROMPT`."""
    return tiny_chat.decode(tiny_chat.greedy(tuple(PROMPT), num_tokens))
