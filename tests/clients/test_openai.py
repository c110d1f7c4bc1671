"""OpenAI's own Python client against a mesh of real processes: it must not notice a difference."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from stagemesh import GenerationRequest, Sampling, TokenIds
from tests.integration.processes import Mesh
from tests.integration.tiny_chat import MODEL_NAME, TinyChat

pytestmark = pytest.mark.integration

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "the client"}]
PROMPT = [5, 6, 7, 8]
IGNORE_EOS = {"ignore_eos": True}


@pytest.fixture
def client(mesh: Mesh) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://{mesh.http}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(mesh: Mesh) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"http://{mesh.http}/v1", api_key="none", max_retries=0
    ) as made:
        yield made


def greedy(tiny_chat: TinyChat, num_tokens: int) -> str:
    """What Transformers answers to `PROMPT`."""
    return tiny_chat.decode(tiny_chat.greedy(tuple(PROMPT), num_tokens))


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


def test_n_with_a_seed_gives_choices_that_differ_and_come_again(client: OpenAI) -> None:
    def ask() -> list[str]:
        answer = client.completions.create(
            model=MODEL_NAME,
            prompt=PROMPT,
            n=3,
            seed=11,
            temperature=1,
            max_tokens=12,
            extra_body=IGNORE_EOS,
        )
        return [choice.text for choice in answer.choices]

    first, second = ask(), ask()
    assert first == second
    assert len(set(first)) == 3


def test_seed_draws_the_same_alone_in_a_batch_and_at_the_other_door(
    client: OpenAI, mesh: Mesh, tiny_chat: TinyChat
) -> None:
    """Case 4: vllm#6449, #5898."""

    def ask(prompts: list[list[int]]) -> list[str]:
        answer = client.completions.create(
            model=MODEL_NAME,
            prompt=prompts,
            seed=7,
            temperature=0.9,
            max_tokens=16,
            extra_body=IGNORE_EOS,
        )
        return [choice.text for choice in answer.choices]

    [alone] = ask([PROMPT])
    assert ask([*([n, 9, 9] for n in range(20, 26)), PROMPT])[-1] == alone
    request = GenerationRequest(
        prompts=(TokenIds(tuple(PROMPT)),),
        sampling=Sampling(temperature=0.9, seed=7),
        max_tokens=16,
        ignore_eos=True,
    )
    assert mesh.ask(request).text() == alone


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1, 17])
def test_max_tokens_is_exact(max_tokens: int, stream: bool, client: OpenAI) -> None:
    """Case 5: sglang#18159."""
    asked = client.completions.create(
        model=MODEL_NAME,
        prompt=PROMPT,
        max_tokens=max_tokens,
        stream=stream,
        stream_options={"include_usage": True} if stream else openai.omit,
        extra_body=IGNORE_EOS,
    )
    usage = asked.usage if isinstance(asked, Completion) else [*asked][-1].usage
    assert usage is not None
    assert usage.completion_tokens == max_tokens


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


def test_stop_ends_the_answer_before_it(client: OpenAI, tiny_chat: TinyChat) -> None:
    text = greedy(tiny_chat, 24)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    answer = client.completions.create(
        model=MODEL_NAME,
        prompt=PROMPT,
        max_tokens=24,
        temperature=0,
        stop=[stop],
        extra_body=IGNORE_EOS,
    )
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_min_tokens_holds_the_end_of_sequence_off(client: OpenAI, tiny_chat: TinyChat) -> None:
    prompt = list(tiny_chat.eos_prompt)

    def ask(min_tokens: int) -> int:
        answer = client.completions.create(
            model=MODEL_NAME,
            prompt=prompt,
            max_tokens=30,
            temperature=0,
            extra_body={"min_tokens": min_tokens},
        )
        assert answer.usage is not None
        return answer.usage.completion_tokens

    assert ask(0) == tiny_chat.num_tokens_to_eos
    assert ask(tiny_chat.num_tokens_to_eos + 3) >= tiny_chat.num_tokens_to_eos + 3


def test_penalties_and_biases_are_what_the_formulas_say(
    client: OpenAI, tiny_chat: TinyChat
) -> None:
    bias = {"40": 3.0, "41": -100.0}
    tokens: list[int] = []
    for _ in range(16):  # sums of logits decide as sums of log-probabilities do
        logprobs = tiny_chat.model.logprobs((*PROMPT, *tokens))[-1].clone()
        for token in set(tokens):
            logprobs[token] -= 0.7 + 0.4 * tokens.count(token)
        for name, value in bias.items():
            logprobs[int(name)] += value
        tokens.append(int(logprobs.argmax()))
    answer = client.completions.create(
        model=MODEL_NAME,
        prompt=PROMPT,
        max_tokens=16,
        temperature=0,
        presence_penalty=0.7,
        frequency_penalty=0.4,
        logit_bias={name: int(value) for name, value in bias.items()},
        extra_body=IGNORE_EOS,
    )
    assert answer.choices[0].text == tiny_chat.decode(tuple(tokens))


class Stop(BaseModel):
    """What the model is to answer with."""

    name: Annotated[str, Field(max_length=8)]
    number: int


def test_chat_parsed_by_a_model_class_follows_its_schema(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL_NAME, messages=MESSAGES, response_format=Stop, temperature=0.8, seed=3
    )
    message = answer.choices[0].message
    assert isinstance(message.parsed, Stop)
    assert json.loads(message.content or "") == message.parsed.model_dump()
    assert answer.choices[0].finish_reason == "stop"


def test_chat_with_a_choice_streamed_is_one_of_them(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL_NAME,
        messages=MESSAGES,
        temperature=1,
        n=2,
        seed=5,
        stream=True,
        extra_body={"structured_outputs": {"choice": ["the stage", "the client"]}},
    )
    texts = {0: "", 1: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert set(texts.values()) <= {"the stage", "the client"}


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
