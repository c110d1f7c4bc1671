"""The tokens that a grammar allows: complete documents only, and the same after a replay."""

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from transformers import PreTrainedTokenizerFast

from runtime.errors import GrammarError, ModelConfigError
from runtime.protocol.step import SlotOpening, SlotSampling, Step
from stage_worker.sampling.grammar import GrammarMatcher, GrammarMatchers, GrammarTokenizer
from stage_worker.sampling.sampler import SamplingInput, sample
from tests.tiny_tokenizer import VOCAB_SIZE, write_tiny_tokenizer

EOS_ID = 2
PROMPT = (5, 6, 7)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
JSON = LLMatcher.grammar_from_json_schema(SCHEMA, defaults={"whitespace_flexible": False})
DATE = LLMatcher.grammar_from_regex(r"\d{4}-\d{2}(-\d{2})?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="module")
def words(folder: Path) -> PreTrainedTokenizerFast:
    return write_tiny_tokenizer(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path, words: PreTrainedTokenizerFast) -> GrammarTokenizer:
    """A tokenizer for a vocabulary with more rows than tokens, as in many models."""
    return GrammarTokenizer(folder, VOCAB_SIZE + 16, (EOS_ID,))


@pytest.fixture(scope="module")
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1)


def walk(matcher: GrammarMatcher, seed: int) -> tuple[int, ...]:
    """Samples from the allowed tokens until the end of sequence is sampled."""
    randomness = random.Random(seed)
    generated: list[int] = []
    while EOS_ID not in generated:
        allowed = (~matcher.forbidden(generated)).nonzero()[:, 0].tolist()
        generated.append(EOS_ID if EOS_ID in allowed else randomness.choice(allowed))
    return tuple(generated)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**6))
def test_matcher_any_allowed_walk_ends_in_a_document_of_the_schema(
    seed: int,
    tokenizer: GrammarTokenizer,
    words: PreTrainedTokenizerFast,
    pool: ThreadPoolExecutor,
) -> None:
    generated = walk(GrammarMatcher(JSON, tokenizer, pool), seed)
    document = json.loads(str(words.decode(list(generated[:-1]))))
    assert sorted(document) == ["age", "name"]
    assert isinstance(document["age"], int)
    assert len(document["name"]) <= 8


def test_matcher_end_of_sequence_is_allowed_only_where_the_grammar_is_complete(
    tokenizer: GrammarTokenizer, words: PreTrainedTokenizerFast, pool: ThreadPoolExecutor
) -> None:
    matcher = GrammarMatcher(DATE, tokenizer, pool)
    text = "2026-11-30"
    generated = words.encode(text, add_special_tokens=False)
    for count in range(len(generated) + 1):
        forbidden = matcher.forbidden(generated[:count])
        written = str(words.decode(generated[:count]))
        assert bool(forbidden[EOS_ID]) == (re.fullmatch(r"\d{4}-\d{2}(-\d{2})?", written) is None)
        assert forbidden[VOCAB_SIZE:].all()
    assert (~forbidden).nonzero()[:, 0].tolist() == [EOS_ID]


@pytest.mark.parametrize("seed", range(4))
def test_matcher_recreated_continues_like_the_first(
    seed: int, tokenizer: GrammarTokenizer, pool: ThreadPoolExecutor
) -> None:
    generated = walk(GrammarMatcher(JSON, tokenizer, pool), seed)
    followed = GrammarMatcher(JSON, tokenizer, pool)
    for count in range(len(generated)):
        anew = GrammarMatcher(JSON, tokenizer, pool)
        assert torch.equal(followed.forbidden(generated[:count]), anew.forbidden(generated[:count]))
        followed.follow(generated[count : count + 1])


def test_matcher_tokens_that_violate_the_grammar_raise_grammar_error(
    tokenizer: GrammarTokenizer, words: PreTrainedTokenizerFast, pool: ThreadPoolExecutor
) -> None:
    with pytest.raises(GrammarError, match="doesn't satisfy the grammar"):
        GrammarMatcher(DATE, tokenizer, pool).forbidden(words.encode("hello"))


def test_grammar_tokenizer_missing_file_raises_model_config_error(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    tokenizer = GrammarTokenizer(tmp_path, VOCAB_SIZE, (EOS_ID,))
    with pytest.raises(ModelConfigError, match="tokenizer cannot be read"):
        GrammarMatcher(DATE, tokenizer, pool).forbidden(())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sample_with_grammar_takes_the_likeliest_allowed_and_reports_the_models_logprob(
    temperature: float, tokenizer: GrammarTokenizer
) -> None:
    sampling = SlotSampling(temperature=temperature, num_prompt_tokens=3, grammar=DATE)
    matchers = GrammarMatchers(tokenizer)
    matchers.apply(Step(0, opened_slots=(SlotOpening(4, sampling), SlotOpening(5, SlotSampling()))))
    assert matchers.get(5) is None
    matcher = matchers.get(4)
    assert matcher is not None
    allowed = (~matcher.forbidden(())).nonzero()[:, 0].tolist()
    logits = torch.linspace(0, 1, tokenizer.vocab_size).flip(0)
    logits[allowed[1]] = 5.0
    [token] = sample(logits[None], [SamplingInput(4, sampling, 3, PROMPT, matcher)])
    assert token.token_id in allowed
    assert temperature or token.token_id == allowed[1]
    assert token.logprob == pytest.approx(float(logits.log_softmax(0)[token.token_id]), abs=1e-5)
    matchers.apply(Step(1, released_slots=(4, 5)))
    assert matchers.get(4) is None


def test_sample_matcher_failure_affects_its_own_slot_only(tokenizer: GrammarTokenizer) -> None:
    sampling = SlotSampling(num_prompt_tokens=3, grammar=DATE)
    matchers = GrammarMatchers(tokenizer)
    matchers.apply(Step(0, opened_slots=(SlotOpening(0, sampling),)))
    logits = torch.zeros(2, tokenizer.vocab_size)
    logits[1, 9] = 1
    failed, drawn = sample(
        logits,
        [
            SamplingInput(0, sampling, 5, (*PROMPT, 90, 91), matchers.get(0)),
            SamplingInput(1, SlotSampling(), 5),
        ],
    )
    assert "doesn't satisfy the grammar" in failed.problem
    assert "structured output:" not in failed.problem
    assert (drawn.slot, drawn.token_id, drawn.problem) == (1, 9, "")
