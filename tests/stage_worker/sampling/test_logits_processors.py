"""Penalties, biases and suppressed tokens, compared with plain arithmetic."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.protocol.step import SlotSampling
from stage_worker.sampling.logits_processors import changes_logits, process_logits
from stage_worker.sampling.sampler import SamplingInput, sample

VOCAB_SIZE = 12
ids = st.integers(0, VOCAB_SIZE - 1)


@given(
    st.lists(ids, min_size=1, max_size=20),
    st.integers(0, 20),
    st.floats(-2, 2, width=32),
    st.floats(-2, 2, width=32),
    st.floats(0.5, 2, width=32),
    st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=3),
    st.integers(0, 1000),
)
def test_process_logits_matches_the_formulas(
    token_ids: list[int],
    num_prompt_tokens: int,
    presence: float,
    frequency: float,
    repetition: float,
    bias: dict[int, float],
    seed: int,
) -> None:
    logits_V = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))
    sampling = SlotSampling(
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        num_prompt_tokens=num_prompt_tokens,
        logit_bias=tuple(bias.items()),
    )
    expected = logits_V.double().numpy().copy()
    for token_id in set(token_ids):
        expected[token_id] *= 1 / repetition if expected[token_id] > 0 else repetition
    for token_id in token_ids[num_prompt_tokens:]:
        expected[token_id] -= frequency
    for token_id in set(token_ids[num_prompt_tokens:]):
        expected[token_id] -= presence
    for token_id, value in bias.items():
        expected[token_id] += value
    before = logits_V.clone()
    if changes_logits(sampling, len(token_ids)):
        shaped_V = process_logits(logits_V, sampling, len(token_ids), token_ids)
        np.testing.assert_allclose(shaped_V.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(logits_V, before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sample_suppressed_token_is_allowed_from_its_position_on(temperature: float) -> None:
    logits_BV = torch.tensor([[0.0, 50.0, 1.0]])
    sampling = SlotSampling(temperature=temperature, suppressed_ids=(1,), suppressed_until=7)
    early, late = (
        sample(logits_BV, [SamplingInput(0, sampling, position)])[0] for position in (6, 7)
    )
    assert early.token_id != 1
    assert late.token_id == 1


def test_sample_logprobs_of_processed_logits_are_the_models_own() -> None:
    logits_BV = torch.tensor([[0.0, 3.0, 1.0]])
    sampling = SlotSampling(num_logprobs=3, logit_bias=((0, 100.0),))
    [token] = sample(logits_BV, [SamplingInput(0, sampling, 5)])
    expected = logits_BV[0].log_softmax(0)
    assert token.token_id == 0
    assert token.logprob == pytest.approx(float(expected[0]), rel=1e-5)
    assert token.top_ids == (1, 2, 0)
