"""Parameters that change what is drawn: the same tokens in every split, batch and replay.

Case 4: vllm#6449 and #5898 (a seed gave other tokens under pipelining or in another batch).
Case 5: sglang#18159 (`max_tokens` was ignored with more than one stage).
"""

from dataclasses import replace

import pytest

from stagemesh import GenerationRequest, Sampling, TokenIds
from tests.integration.processes import Mesh
from tests.integration.tiny_chat import TinyChat

pytestmark = pytest.mark.integration

PROMPT = tuple(range(5, 45))
BASE = GenerationRequest(prompts=(TokenIds(PROMPT),), max_tokens=24, ignore_eos=True)
SEEDED = Sampling(temperature=0.9, top_p=0.95, seed=7)
PENALIZED = replace(
    SEEDED,
    presence_penalty=0.6,
    frequency_penalty=0.3,
    repetition_penalty=1.3,
    logit_bias=((40, 1.5), (41, -100.0)),
)
SAMPLINGS = {"seeded": SEEDED, "penalized": PENALIZED}
# What the first mesh of the session drew: every other split has to draw the same.
_drawn: dict[str, tuple[int, ...]] = {}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_seed_draws_the_same_in_every_split_and_batch(name: str, mesh: Mesh) -> None:
    request = replace(BASE, sampling=SAMPLINGS[name])
    alone = mesh.ask(request).token_ids()
    assert alone == _drawn.setdefault(name, alone)
    others = tuple(TokenIds(tuple(range(n, n + 70))) for n in range(6, 12))
    together = mesh.ask(replace(request, prompts=(*others, TokenIds(PROMPT))))
    assert together.token_ids(len(others)) == alone
    assert 41 not in alone or name == "seeded"


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 17])
def test_max_tokens_is_exact_in_every_split(max_tokens: int, mesh: Mesh) -> None:
    answers = mesh.ask(replace(BASE, max_tokens=max_tokens))
    usage = answers.end().usage
    assert usage is not None
    assert len(answers.token_ids()) == usage.completion_tokens == max_tokens


def test_min_tokens_holds_the_end_off_in_every_split(mesh: Mesh, tiny_chat: TinyChat) -> None:
    request = replace(BASE, prompts=(TokenIds(tiny_chat.eos_prompt),), ignore_eos=False)
    early = tiny_chat.num_tokens_to_eos
    assert len(mesh.ask(request).token_ids()) == early
    tokens = mesh.ask(replace(request, min_tokens=early)).token_ids()
    assert tokens[: early - 1] == tiny_chat.greedy(tiny_chat.eos_prompt, early - 1)
    assert tokens[early - 1] != tiny_chat.eos_token_id
    assert len(tokens) > early


@pytest.mark.parametrize("name", SAMPLINGS)
def test_seed_draws_the_same_after_preemption(name: str, preempting_pair: Mesh) -> None:
    """Sequences lose their blocks to others and are computed again."""
    request = replace(BASE, max_tokens=60, sampling=SAMPLINGS[name])
    prompts = tuple(TokenIds(tuple(range(n, n + 40))) for n in range(5, 13))
    together = preempting_pair.ask(replace(request, prompts=prompts))
    alone = [
        preempting_pair.ask(replace(request, prompts=(prompt,))).token_ids() for prompt in prompts
    ]
    assert [together.token_ids(index) for index in range(len(prompts))] == alone
