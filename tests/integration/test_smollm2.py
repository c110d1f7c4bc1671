"""The bundled model in seven splits, two with ranks: Transformers' numbers and the known answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from runtime.checkpoints.model_store import resolve_model
from stagemesh import Chat, ChatMessage, FinishReason, GenerationRequest, Sampling, TokenIds
from tests.integration.processes import Mesh, serving
from tests.integration.tiny_chat import assert_matches_reference
from tests.tiny_models import TinyModel

pytestmark = [pytest.mark.integration, pytest.mark.smollm2]

SPLITS = (
    "--layers 15,15",
    *(
        pytest.param(split, marks=pytest.mark.slow)
        for split in (
            "--layers 30",
            "--layers 3,20,7",
            "--layers 29,1",
            "--layers 8,8,7,7",
            # Three key/value heads: two ranks have shares of two and one.
            "--pp 2 --tp 2",
            "--tp 3",
        )
    ),
)
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


@pytest.fixture(scope="module", params=SPLITS)
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """The bundled model, cut in one of these ways."""
    options = ("--max-step-tokens", "64", "--kv-memory", "256MiB")
    with serving("smollm2", *request.param.split(), *options) as mesh:
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
