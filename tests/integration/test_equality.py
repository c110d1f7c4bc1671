"""Real processes in every split: the same numbers and tokens as Transformers."""

import numpy as np
import pytest

from runtime.protocol.step import SlotSampling
from stage_worker.sampling.sampler import SamplingInput, sample
from stagemesh import Chat, ChatMessage, FinishReason, GenerationRequest, Sampling, TokenIds
from tests.integration.processes import Mesh
from tests.integration.tiny_chat import TinyChat, assert_matches_reference

pytestmark = pytest.mark.integration

VOCABULARY = Sampling(num_logprobs=320)
# The long one goes in four chunks, and the short ones decode between them.
PROMPT_LENGTHS = (1, 7, 200, 40, 2)


def make_prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng([seed, length]).integers(3, 320, length).tolist())


def test_greedy_over_mixed_lengths_matches_transformers(mesh: Mesh, tiny_chat: TinyChat) -> None:
    prompts = [make_prompt(length) for length in PROMPT_LENGTHS]
    answers = mesh.ask(
        GenerationRequest(
            prompts=tuple(TokenIds(prompt) for prompt in prompts),
            sampling=VOCABULARY,
            max_tokens=6,
            ignore_eos=True,
        )
    )
    for index, prompt in enumerate(prompts):
        assert len(answers.token_ids(index)) == 6
        assert_matches_reference(tiny_chat.model, prompt, answers.of(index))


def test_prompt_of_three_thousand_tokens_matches_transformers(
    mesh: Mesh, tiny_chat: TinyChat
) -> None:
    prompt = make_prompt(3000)
    answers = mesh.ask(
        GenerationRequest(
            prompts=(TokenIds(prompt),), sampling=VOCABULARY, max_tokens=3, ignore_eos=True
        )
    )
    assert len(answers.token_ids()) == 3
    assert_matches_reference(tiny_chat.model, prompt, answers.updates)


def test_text_and_chat_prompts_are_tokenized_as_transformers_does(
    mesh: Mesh, tiny_chat: TinyChat
) -> None:
    text = "the naïve client — 日本"
    chat = Chat((ChatMessage("user", text),))
    answers = mesh.ask(GenerationRequest(prompts=(text, chat), max_tokens=8, ignore_eos=True))
    conversation = [{"role": "user", "content": text}]
    rendered = tiny_chat.tokenizer.apply_chat_template(
        conversation, add_generation_prompt=True, tokenize=False
    )
    for index, expected in enumerate((text, rendered)):
        prompt = tuple(tiny_chat.tokenizer.encode(expected))
        tokens = tiny_chat.greedy(prompt, 8)
        assert answers.token_ids(index) == tokens
        assert answers.text(index) == tiny_chat.decode(tokens)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, seed=11),
        Sampling(temperature=0.7, top_k=20, seed=12),
        Sampling(temperature=1.3, top_p=0.8, min_p=0.01, seed=2**63 + 5),
    ],
    ids=["all", "top_k", "top_p_min_p"],
)
def test_sampled_tokens_are_those_of_the_seed_in_any_split(
    sampling: Sampling, mesh: Mesh, tiny_chat: TinyChat
) -> None:
    prompt = make_prompt(30)
    request = GenerationRequest(
        prompts=(TokenIds(prompt),), sampling=sampling, max_tokens=12, ignore_eos=True
    )
    assert sampling.seed is not None
    slot_sampling = SlotSampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
    )
    expected: tuple[int, ...] = ()
    for position in range(len(prompt), len(prompt) + 12):
        logits = tiny_chat.model.logprobs((*prompt, *expected))[-1:]
        (token,) = sample(logits, [SamplingInput(0, slot_sampling, position)])
        expected += (token.token_id,)
    assert mesh.ask(request).token_ids() == expected


def test_seed_chosen_by_the_server_is_told_and_repeats(mesh: Mesh) -> None:
    request = GenerationRequest(
        prompts=(TokenIds(make_prompt(5)),), sampling=Sampling(temperature=1.0), max_tokens=10
    )
    first = mesh.ask(request)
    seed = first.updates[0].seed
    assert seed is not None
    again = GenerationRequest(
        prompts=request.prompts, sampling=Sampling(temperature=1.0, seed=seed), max_tokens=10
    )
    assert mesh.ask(again).token_ids() == first.token_ids()


def test_answer_stops_at_end_of_sequence_and_its_text_leaves_it_out(
    mesh: Mesh, tiny_chat: TinyChat
) -> None:
    prompt = tiny_chat.eos_prompt
    answers = mesh.ask(GenerationRequest(prompts=(TokenIds(prompt),), max_tokens=50))
    tokens = tiny_chat.greedy(prompt, tiny_chat.num_tokens_to_eos)
    assert answers.token_ids() == tokens
    assert tokens[-1] == tiny_chat.eos_token_id
    assert answers.end().finish_reason is FinishReason.STOP
    assert answers.text() == tiny_chat.decode(tokens[:-1])


def test_answer_with_ignore_eos_goes_on(mesh: Mesh, tiny_chat: TinyChat) -> None:
    prompt = tiny_chat.eos_prompt
    answers = mesh.ask(
        GenerationRequest(prompts=(TokenIds(prompt),), max_tokens=12, ignore_eos=True)
    )
    assert answers.token_ids() == tiny_chat.greedy(prompt, 12)
    assert answers.end().finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 17])
def test_max_tokens_is_exact(max_tokens: int, mesh: Mesh, tiny_chat: TinyChat) -> None:
    prompt = make_prompt(9)
    answers = mesh.ask(
        GenerationRequest(prompts=(TokenIds(prompt),), max_tokens=max_tokens, ignore_eos=True)
    )
    end = answers.end()
    assert answers.token_ids() == tiny_chat.greedy(prompt, max_tokens)
    assert end.finish_reason is FinishReason.LENGTH
    assert end.usage is not None
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (9, max_tokens)
