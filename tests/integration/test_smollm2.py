"""The bundled model in five splits: Transformers' numbers, and the answer that is known."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from runtime.model_store import resolve_model
from stagemesh import Chat, ChatMessage, FinishReason, GenerationRequest, Sampling, TokenIds
from tests.integration.processes import Mesh, serving
from tests.integration.tiny_chat import assert_matches_reference
from tests.tiny_models import TinyModel

pytestmark = [pytest.mark.integration, pytest.mark.smollm2]

SPLITS = ("30", "15,15", "3,20,7", "29,1", "8,8,7,7")
QUESTION = Chat((ChatMessage("user", "Give me three tips for staying healthy."),))
ANSWER = (
    "1. Stay hydrated: Drink plenty of water, especially during the heat. 2. Eat a balanced diet: "
    "A balanced diet can help your body stay healthy. 3. Get enough sleep: Make sure you're "
    "getting enough sleep each night."
)
PROMPTS = (
    (1, *range(100, 139)),
    tuple((100 + 37 * index) % 40000 for index in range(150)),
)


@pytest.fixture(scope="module")
def reference() -> TinyModel:
    """Transformers with the same weights."""
    folder = resolve_model("smollm2")
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return TinyModel(Path(folder), model, model.config.num_hidden_layers, model.config.vocab_size)


@pytest.fixture(scope="module", params=SPLITS, ids=lambda layers: f"layers={layers}")
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """The bundled model, cut in one of the five ways."""
    options = ("--layers", request.param, "--max-step-tokens", "64", "--kv-memory", "256MiB")
    with serving("smollm2", *options) as mesh:
        yield mesh
        mesh.assert_idle()
        mesh.stop()


def test_answer_is_the_known_one(mesh: Mesh) -> None:
    answers = mesh.ask(GenerationRequest(prompts=(QUESTION,), max_tokens=100))
    assert answers.text() == ANSWER
    assert answers.end().finish_reason is FinishReason.STOP


def test_logprobs_over_the_vocabulary_match_transformers(mesh: Mesh, reference: TinyModel) -> None:
    answers = mesh.ask(
        GenerationRequest(
            prompts=tuple(TokenIds(prompt) for prompt in PROMPTS),
            sampling=Sampling(num_logprobs=reference.vocab_size),
            max_tokens=3,
            ignore_eos=True,
        )
    )
    for index, prompt in enumerate(PROMPTS):
        assert len(answers.token_ids(index)) == 3
        assert_matches_reference(reference, prompt, answers.of(index))
