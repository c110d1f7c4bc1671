"""Log-probabilities of prompts against Transformers, through meshes of real processes.

Threads: vllm#14239 and #29071 (wrong with chunked prefill or after preemption). Case 12.
"""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from stagemesh import GenerationRequest, PromptToken, Sampling, TokenIds
from tests.integration.processes import Answers, Mesh
from tests.integration.tiny_chat import TOLERANCE, TinyChat

pytestmark = pytest.mark.integration

NUM_TOP = 5
# Longer than a step of the shared meshes: read in chunks.
PROMPT = tuple((11 * n) % 300 + 5 for n in range(150))
BASE = GenerationRequest(
    prompts=(TokenIds(PROMPT),),
    max_tokens=4,
    sampling=Sampling(num_prompt_logprobs=NUM_TOP),
    ignore_eos=True,
)


def prompt_tokens(answers: Answers, index: int = 0) -> list[PromptToken]:
    return [token for update in answers.of(index) for token in update.prompt_tokens]


def assert_matches(
    tiny_chat: TinyChat, prompt: tuple[int, ...], reported: list[PromptToken]
) -> None:
    """The same log-probabilities as Transformers', within the tolerance of all such tests."""
    assert tuple(token.id for token in reported) == prompt
    expected_rows = tiny_chat.model.logprobs(prompt)
    bound = TOLERANCE * float(expected_rows.abs().max())
    assert reported[0].logprob is None
    for token, expected in zip(reported[1:], expected_rows[:-1], strict=True):
        assert token.logprob == pytest.approx(float(expected[token.id]), abs=bound)
        assert len(token.top_logprobs) == NUM_TOP
        likeliest = expected.topk(NUM_TOP).values.tolist()
        assert [logprob for _, logprob in token.top_logprobs] == pytest.approx(likeliest, abs=bound)


def test_prompt_logprobs_in_chunks_and_batches_are_transformers_in_every_split(
    mesh: Mesh, tiny_chat: TinyChat
) -> None:
    prompts = (PROMPT, PROMPT[:1], PROMPT[:70], PROMPT)
    answers = mesh.ask(replace(BASE, prompts=tuple(TokenIds(prompt) for prompt in prompts)))
    for index, prompt in enumerate(prompts):
        assert_matches(tiny_chat, prompt, prompt_tokens(answers, index))
        assert len(answers.token_ids(index)) == 4


def test_prompt_logprobs_after_preemption_are_transformers(
    preempting_pair: Mesh, tiny_chat: TinyChat
) -> None:
    prompts = tuple(tuple(range(n, n + 40)) for n in range(5, 13))
    request = replace(BASE, max_tokens=60, prompts=tuple(TokenIds(prompt) for prompt in prompts))
    answers = preempting_pair.ask(request)
    for index, prompt in enumerate(prompts):
        assert_matches(tiny_chat, prompt, prompt_tokens(answers, index))


def ask_completion(mesh: Mesh, **body: Any) -> Any:
    response = httpx.post(f"http://{mesh.http}/v1/completions", json=body, timeout=60)
    return response.json()["choices"][0]


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echo_with_logprobs_is_transformers_log_likelihood(
    max_tokens: int, pair: Mesh, tiny_chat: TinyChat
) -> None:
    """Case 10: `echo` with `max_tokens` 0 (vllm#6521)."""
    choice = ask_completion(
        pair, prompt=[*PROMPT], echo=True, logprobs=1, max_tokens=max_tokens, temperature=0
    )
    logprobs = choice["logprobs"]
    reported = logprobs["token_logprobs"][: len(PROMPT)]
    rows = tiny_chat.model.logprobs(PROMPT)
    expected = [float(row[token]) for row, token in zip(rows, PROMPT[1:], strict=False)]
    assert reported[0] is None
    assert reported[1:] == pytest.approx(expected, abs=1e-3)
    assert sum(reported[1:]) == pytest.approx(sum(expected), abs=1e-2)
    assert len(logprobs["tokens"]) == len(PROMPT) + max_tokens


def test_echo_text_offsets_point_at_the_tokens(pair: Mesh) -> None:
    prompt = "the last stage draws the token"
    choice = ask_completion(pair, prompt=prompt, echo=True, logprobs=0, max_tokens=0)
    logprobs = choice["logprobs"]
    assert choice["text"] == prompt == "".join(logprobs["tokens"])
    for name, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert prompt[offset:].startswith(name)
