"""Every family in memory, in one to three stages of one or two ranks and any chunks.

Transformers is the reference.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import repeat

import pytest
import torch

from runtime.checkpoints.checkpoint import Checkpoint
from stage_worker.execution.stage_runner import StageRunner
from stage_worker.loading.reference_logprobs import reference_logprobs
from tests.stage_worker.local_pipeline import (
    EVERYTHING,
    WHOLE,
    LocalPipeline,
    Request,
    assert_all_match,
    make_prompt,
)
from tests.stage_worker.local_stages import load_ranked, load_stages, make_spec
from tests.tiny_families import TINY_FAMILIES, make_tiny_family
from tests.tiny_models import TinyModel

MakeModel = Callable[[str], TinyModel]


@pytest.fixture(scope="module")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    made: dict[str, TinyModel] = {}

    def make(name: str) -> TinyModel:
        if name not in made:
            made[name] = make_tiny_family(tmp_path_factory.mktemp(name), name)
        return made[name]

    return make


@pytest.mark.parametrize("chunk_size", [1, 7, WHOLE])
@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("split", [(4,), (1, 3), (1, 2, 1)], ids=str)
@pytest.mark.parametrize("name", TINY_FAMILIES)
def test_family_mixed_batch_in_any_split_and_chunk_size_matches_transformers(
    name: str, split: tuple[int, ...], tp_size: int, chunk_size: int, make_model: MakeModel
) -> None:
    model, family = make_model(name), TINY_FAMILIES[name]
    requests = [
        Request(make_prompt(length, seed), num_tokens=4, sampling=EVERYTHING, start=2 * seed)
        for seed, length in enumerate(family.prompt_lengths)
    ]
    tp_sizes = [tp_size] * len(split)
    pipeline = LocalPipeline(load_ranked(model.folder, split, family.max_model_len, tp_sizes))
    assert_all_match(model, requests, pipeline, repeat(chunk_size))
    pipeline.close()


@pytest.mark.parametrize("chunk_size", [1, 7, WHOLE])
@pytest.mark.parametrize("name", TINY_FAMILIES)
def test_family_in_alternating_slices_matches_transformers(
    name: str, chunk_size: int, make_model: MakeModel
) -> None:
    """Steps of decodes, chunks and both are split, between sequences and inside them."""
    model, family = make_model(name), TINY_FAMILIES[name]
    requests = [
        Request(make_prompt(length, seed), num_tokens=4, sampling=EVERYTHING, start=2 * seed)
        for seed, length in enumerate(family.prompt_lengths)
    ]
    stages = load_ranked(model.folder, (1, 3), family.max_model_len, (2, 2), overlap="on")
    pipeline = LocalPipeline(stages)
    assert_all_match(model, requests, pipeline, repeat(chunk_size))
    pipeline.close()


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3"])
def test_family_prompt_far_past_the_window_matches_transformers(
    name: str, make_model: MakeModel
) -> None:
    model = make_model(name)
    requests = [
        Request(make_prompt(700), num_tokens=20, sampling=EVERYTHING),
        Request(make_prompt(9, 1), num_tokens=30, sampling=EVERYTHING),
    ]
    pipeline = LocalPipeline(load_stages(model.folder, (4,)))
    assert_all_match(model, requests, pipeline, repeat(150))
    pipeline.close()


@pytest.mark.parametrize("name", TINY_FAMILIES)
def test_family_in_bfloat16_stays_near_the_reference(name: str, make_model: MakeModel) -> None:
    model, family = make_model(name), TINY_FAMILIES[name]
    spec = replace(make_spec(4, max_model_len=family.max_model_len), dtype="bfloat16")
    pipeline = LocalPipeline(
        [StageRunner.load(Checkpoint.open(model.folder), spec, lambda done, total: None)]
    )
    prompt = make_prompt(31)
    ((token,),) = pipeline.generate([Request(prompt, sampling=EVERYTHING)], repeat(10))
    pipeline.close()
    expected_V = model.logprobs(prompt)[-1]
    actual_V = torch.empty_like(expected_V)
    actual_V[list(token.top_ids)] = torch.tensor(token.top_logprobs)
    assert (actual_V - expected_V).abs().max() < 0.1 * expected_V.abs().max()


@pytest.mark.parametrize("name", TINY_FAMILIES)
def test_reference_logprobs_of_any_family_match_transformers(
    name: str, make_model: MakeModel
) -> None:
    model, family = make_model(name), TINY_FAMILIES[name]
    prompt = make_prompt(family.prompt_lengths[1])
    top_ids, top_logprobs = reference_logprobs(
        Checkpoint.open(model.folder), prompt, 10, lambda done, total: None
    )
    expected = model.logprobs(prompt)[-1].topk(10)
    assert top_ids == tuple(expected.indices.tolist())
    assert top_logprobs == pytest.approx(expected.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("max_model_len", [16, 100])
def test_reference_logprobs_of_longrope_match_a_replica_of_that_length(
    max_model_len: int, make_model: MakeModel
) -> None:
    folder, prompt = make_model("phi3_long").folder, make_prompt(15)
    top_ids, top_logprobs = reference_logprobs(
        Checkpoint.open(folder), prompt, 10, lambda *_: None, max_model_len
    )
    pipeline = LocalPipeline(load_stages(folder, (1, 3), max_model_len))
    ((token,),) = pipeline.generate([Request(prompt, sampling=EVERYTHING)], repeat(WHOLE))
    pipeline.close()
    assert token.top_ids[:10] == top_ids
    assert token.top_logprobs[:10] == pytest.approx(top_logprobs, abs=1e-4)
