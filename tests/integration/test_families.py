"""A model of another family in real processes: a stage's assignment suffices to compute it.

LongRoPE it is, because there the longest sequence of the whole mesh changes every layer, and the
canary must know it too.
"""

import pytest

from stagemesh import GenerationRequest, Sampling, TokenIds
from tests.integration.processes import serving
from tests.integration.test_equality import make_prompt
from tests.integration.tiny_chat import assert_matches_reference
from tests.tiny_families import make_tiny_family
from tests.tiny_tokenizer import write_tiny_tokenizer

pytestmark = pytest.mark.integration


def test_family_with_longrope_matches_transformers(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = make_tiny_family(tmp_path_factory.mktemp("phi"), "phi3_long")
    write_tiny_tokenizer(model.folder)
    prompts = [make_prompt(length) for length in (17, 90, 40)]
    request = GenerationRequest(
        prompts=tuple(TokenIds(prompt) for prompt in prompts),
        sampling=Sampling(num_logprobs=model.vocab_size),
        max_tokens=5,
        ignore_eos=True,
    )
    with serving(str(model.folder), "--layers", "1,3", "--max-step-tokens", "64") as mesh:
        answers = mesh.ask(request)
        for index, prompt in enumerate(prompts):
            assert len(answers.token_ids(index)) == 5
            assert_matches_reference(model, prompt, answers.of(index))
        mesh.assert_idle()
        mesh.stop()
