"""OpenAI's own Python client against a mesh of real processes: it must not notice a difference."""

import asyncio
import math

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Completion

from tests.clients.questions import IGNORE_EOS, MESSAGES, PROMPT, greedy
from tests.integration.processes import Mesh
from tests.integration.tiny_chat import MODEL_NAME, TinyChat

pytestmark = pytest.mark.integration


def test_models_lists_the_served_model(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL_NAME]


def test_completion_is_what_transformers_says(client: OpenAI, tiny_chat: TinyChat) -> None:
    answer = client.completions.create(
        model=MODEL_NAME, prompt=PROMPT, max_tokens=12, temperature=0, extra_body=IGNORE_EOS
    )
    assert answer.choices[0].text == greedy(tiny_chat, 12)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 12)


def test_completion_streamed_is_the_same(client: OpenAI, tiny_chat: TinyChat) -> None:
    stream = client.completions.create(
        model=MODEL_NAME,
        prompt=PROMPT,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=IGNORE_EOS,
    )
    *chunks, last = stream
    assert "".join(chunk.choices[0].text for chunk in chunks) == greedy(tiny_chat, 12)
    assert last.usage is not None
    assert last.usage.total_tokens == 16


def test_chat_streamed_is_the_whole_answer(client: OpenAI) -> None:
    whole = client.chat.completions.create(
        model=MODEL_NAME, messages=MESSAGES, max_completion_tokens=10, temperature=0
    )
    stream = client.chat.completions.create(
        model=MODEL_NAME, messages=MESSAGES, max_tokens=10, temperature=0, stream=True
    )
    deltas = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(deltas) == whole.choices[0].message.content
    assert whole.choices[0].message.role == "assistant"


def test_chat_logprobs_are_a_distribution(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL_NAME,
        messages=MESSAGES,
        max_tokens=5,
        temperature=0,
        logprobs=True,
        top_logprobs=4,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    for token in logprobs.content:
        assert len(token.top_logprobs) == 4
        assert token.logprob == token.top_logprobs[0].logprob
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1
        assert token.bytes is not None


def test_prompt_that_ends_inside_a_character_is_continued_and_echoed_without_a_seam(
    client: OpenAI, tiny_chat: TinyChat
) -> None:
    *prompt, last = tiny_chat.tokenizer.encode("the 世")
    texts = []
    for echo in (False, True):
        for stream in (False, True):
            asked = client.completions.create(
                model=MODEL_NAME,
                prompt=prompt,
                max_tokens=1,
                temperature=0,
                echo=echo,
                logit_bias={str(last): 100},
                stream=stream,
            )
            chunks = [asked] if isinstance(asked, Completion) else asked
            texts.append("".join(chunk.choices[0].text for chunk in chunks))
    assert texts == ["世", "世", "the 世", "the 世"]


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_completion_echo_with_logprobs_is_transformers_log_likelihood(
    max_tokens: int, client: OpenAI, tiny_chat: TinyChat
) -> None:
    prompt = list(range(5, 60))
    answer = client.completions.create(
        model=MODEL_NAME, prompt=prompt, echo=True, logprobs=1, max_tokens=max_tokens
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    rows = tiny_chat.model.logprobs(tuple(prompt))
    expected = [float(row[token]) for row, token in zip(rows, prompt[1:], strict=False)]
    assert logprobs.token_logprobs[1 : len(prompt)] == pytest.approx(expected, abs=1e-3)


def test_errors_are_the_clients_own_classes(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.completions.create(model="gpt-9", prompt="hi")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL_NAME, prompt="hi", temperature=-1)
    assert (caught.value.code, caught.value.param) == ("invalid_request", "temperature")
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        client.embeddings.create(model=MODEL_NAME, input="hi")


async def test_async_clients_at_once_each_get_their_own(
    async_client: AsyncOpenAI, tiny_chat: TinyChat
) -> None:
    async def ask(first: int) -> str:
        answer = await async_client.completions.create(
            model=MODEL_NAME,
            prompt=[first, 6, 7],
            max_tokens=8,
            temperature=0,
            extra_body=IGNORE_EOS,
        )
        return answer.choices[0].text

    texts = await asyncio.gather(*(ask(first) for first in range(5, 15)))
    assert texts == [tiny_chat.decode(tiny_chat.greedy((first, 6, 7), 8)) for first in range(5, 15)]


async def test_async_stream_closed_early_frees_everything(
    async_client: AsyncOpenAI, mesh: Mesh
) -> None:
    stream = await async_client.chat.completions.create(
        model=MODEL_NAME,
        messages=MESSAGES,
        n=2,
        max_tokens=3000,
        stream=True,
        extra_body=IGNORE_EOS,
    )
    await anext(aiter(stream))
    await stream.close()
    await asyncio.to_thread(mesh.assert_idle)


async def test_async_call_cancelled_frees_everything(async_client: AsyncOpenAI, mesh: Mesh) -> None:
    call = asyncio.create_task(
        async_client.completions.create(
            model=MODEL_NAME, prompt=PROMPT, max_tokens=3000, extra_body=IGNORE_EOS
        )
    )
    while not (await asyncio.to_thread(mesh.state)).num_running:
        pass
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(mesh.assert_idle)
