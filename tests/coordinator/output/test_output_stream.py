"""What a client reads, also when it reads late."""

import asyncio

import pytest

from coordinator.output.output_stream import MAX_LOGPROBS_PER_UPDATE, OutputStream
from runtime.errors import ShuttingDownError
from runtime.protocol.inference_types import Finish, FinishReason, Timings, Token, Update, Usage
from runtime.protocol.step import SampledToken

FINISH = Finish(FinishReason.LENGTH, Usage(1, 2), Timings(0.1, 0.2, 0.3))


def token(token_id: int, num_logprobs: int = 0) -> SampledToken:
    return SampledToken(0, token_id, -1.0, (1,) * num_logprobs, (-1.0,) * num_logprobs)


def read_token(token_id: int, num_logprobs: int = 0) -> Token:
    return Token(token_id, -1.0, ((1, -1.0),) * num_logprobs)


async def test_output_unread_tokens_are_merged_into_one_update() -> None:
    output = OutputStream((7,))
    output.push(0, "a", token(1))
    output.push(0, "", token(2))
    output.finish(0, "b", FINISH)
    updates = [update async for update in output]
    assert updates == [Update("", 0, "ab", (read_token(1), read_token(2)), FINISH, 7)]


async def test_output_prompts_take_turns_in_order_of_arrival() -> None:
    output = OutputStream((1, 2))
    output.push(1, "x", token(5))
    output.push(0, "y", token(6))
    output.push(1, "z", token(7))
    assert (await anext(output)) == Update("", 1, "xz", (read_token(5), read_token(7)), None, 2)
    assert (await anext(output)) == Update("", 0, "y", (read_token(6),), None, 1)


async def test_output_seed_comes_with_the_first_update_only() -> None:
    output = OutputStream((7,))
    output.push(0, "a", token(1))
    assert (await anext(output)).seed == 7
    output.push(0, "b", token(2))
    assert (await anext(output)).seed is None


async def test_output_many_logprobs_come_in_several_updates() -> None:
    output = OutputStream((0,))
    size = MAX_LOGPROBS_PER_UPDATE // 2 + 1
    for token_id in range(3):
        output.push(0, "t", token(token_id, size))
    output.finish(0, "", FINISH)
    updates = [update async for update in output]
    tokens = [(read_token(token_id, size),) for token_id in range(3)]
    assert [update.tokens for update in updates] == tokens
    assert [update.text for update in updates] == ["", "", "ttt"]
    assert [update.finish for update in updates] == [None, None, FINISH]


async def test_output_failure_comes_after_what_was_unread() -> None:
    output = OutputStream((0, 0))
    output.push(0, "a", token(1))
    output.fail(ShuttingDownError())
    assert (await anext(output)).text == "a"
    with pytest.raises(ShuttingDownError):
        await anext(output)


async def test_output_reader_waits_until_something_comes() -> None:
    output = OutputStream((0,))
    reading = asyncio.ensure_future(anext(output))
    await asyncio.sleep(0)
    assert not reading.done()
    output.push(0, "a", token(1))
    assert (await reading).text == "a"
