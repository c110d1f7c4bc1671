"""Log-probabilities of prompts against Transformers, in every split and chunk size.

Threads: vllm#14239 and #29071 (prompt log-probabilities were wrong with chunked prefill). Case 12.
"""

from itertools import repeat

import pytest

from runtime.errors import FrameError, TokenOutOfVocabularyError
from runtime.protocol.step import ScoredToken, SequenceChunk, SlotOpening, SlotSampling, Step
from stage_worker.execution import output_head
from stage_worker.sampling.prompt_logprobs import chunk_targets
from tests.stage_worker.local_pipeline import TOLERANCE, WHOLE, LocalPipeline, Request, make_prompt
from tests.stage_worker.local_stages import load_stages
from tests.tiny_models import TinyModel, make_tiny_llama

LENGTHS = (1, 2, 33, 120)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_llama(tmp_path_factory.mktemp("model"), "tied_gqa")


def scoring(num_prompt_tokens: int, num_logprobs: int = 3) -> SlotSampling:
    return SlotSampling(
        num_prompt_tokens=num_prompt_tokens, num_prompt_logprobs=num_logprobs, num_logprobs=1
    )


def assert_scores(model: TinyModel, request: Request, scored: list[ScoredToken]) -> None:
    """Every token except the first has the log-probability of Transformers."""
    prompt = request.prompt_ids
    assert [token.position for token in scored] == list(range(1, len(prompt)))
    assert tuple(token.token_id for token in scored) == prompt[1:]
    expected_TV = model.logprobs(prompt)
    bound = TOLERANCE * float(expected_TV.abs().max())
    for token, expected_V in zip(scored, expected_TV[:-1], strict=True):
        assert abs(token.logprob - float(expected_V[token.token_id])) <= bound
        top = expected_V.topk(3).values.tolist()
        assert token.top_logprobs == pytest.approx(top, abs=bound)
        for token_id, logprob in zip(token.top_ids, token.top_logprobs, strict=True):
            assert abs(logprob - float(expected_V[token_id])) <= bound


@pytest.mark.parametrize("chunk_size", [1, 7, 32, WHOLE])
@pytest.mark.parametrize("split", [(4,), (1, 2, 1)], ids=str)
def test_prompts_in_any_split_and_chunk_size_score_like_transformers(
    split: tuple[int, ...], chunk_size: int, model: TinyModel
) -> None:
    requests = [
        Request(make_prompt(length, seed), 3, scoring(length), start=2 * seed)
        for seed, length in enumerate(LENGTHS)
    ]
    others = [Request(make_prompt(20, 9), num_tokens=8)]
    pipeline = LocalPipeline(load_stages(model.folder, split))
    for done in pipeline.run([*requests, *others], repeat(chunk_size)):
        if done.request in others:
            assert done.scored == []
        else:
            assert_scores(model, done.request, done.scored)
    pipeline.close()


def test_prompt_whose_head_is_computed_in_pieces_scores_the_same(
    model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_head, "_MAX_LOGITS", 7 * 320)
    request = Request(make_prompt(60), 1, scoring(60))
    pipeline = LocalPipeline(load_stages(model.folder, (4,)))
    [done] = pipeline.run([request], repeat(WHOLE))
    assert_scores(model, request, done.scored)
    pipeline.close()


@pytest.mark.parametrize(
    ("next_token_id", "error"), [(None, FrameError), (320, TokenOutOfVocabularyError)]
)
def test_chunk_without_a_token_to_score_is_refused_before_it_is_computed(
    next_token_id: int | None, error: type[Exception], model: TinyModel
) -> None:
    [stage] = load_stages(model.folder, (4,))
    stage.open_epoch(num_blocks=8, max_sequences=2)
    chunk = SequenceChunk(0, 0, (5, 6, 7), (0,), next_token_id=next_token_id)
    step = Step(0, opened_slots=(SlotOpening(0, scoring(9)),), chunks=(chunk,))
    with pytest.raises(error):
        stage.run(step, None)


def test_targets_of_generated_tokens_are_none() -> None:
    """After a preemption, generated tokens are prefilled again after the prompt."""
    chunk = SequenceChunk(3, 4, (5, 6, 7, 8), sample=True)
    targets = list(chunk_targets(chunk, 10, scoring(7)))
    assert [(each.row, each.position, each.token_id) for each in targets] == [
        (10, 5, 6),
        (11, 6, 7),
    ]
    assert list(chunk_targets(chunk, 0, SlotSampling(num_prompt_tokens=7))) == []
