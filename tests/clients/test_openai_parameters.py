"""The parameters of OpenAI's own Python client, each with what it must come to."""

import json
from typing import Annotated

import openai
import pytest
from openai import OpenAI
from openai.types import Completion
from pydantic import BaseModel, Field

from stagemesh import GenerationRequest, Sampling, TokenIds
from tests.clients.questions import IGNORE_EOS, MESSAGES, PROMPT, greedy
from tests.integration.processes import Mesh
from tests.integration.tiny_chat import MODEL_NAME, TinyChat

pytestmark = pytest.mark.integration


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


def test_seed_draws_the_same_alone_in_a_batch_and_at_the_other_api(
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
