"""Sampling, compared with an independent implementation of filters and inverse distribution."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from runtime.errors import NonFiniteLogitsError
from runtime.protocol.step import SampledToken, SlotSampling
from stage_worker.sampling.sampler import SamplingInput, sample, uniform

VOCAB_SIZE = 40

samplings = st.builds(
    SlotSampling,
    temperature=st.floats(0.05, 4.0),
    top_k=st.integers(0, VOCAB_SIZE + 5),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 2**32 - 1),
)


def make_logits(seed: int, scale: float = 2.0, num_rows: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(num_rows, VOCAB_SIZE, generator=generator)


def draw_one(logits_V: Tensor, sampling: SlotSampling, position: int = 0) -> SampledToken:
    return sample(logits_V[None], [SamplingInput(0, sampling, position)])[0]


def kept_probabilities(logits_V: Tensor, sampling: SlotSampling) -> npt.NDArray[np.float64]:
    """The distribution after all filters, with a full sort for each."""
    scaled = logits_V.double().numpy() / sampling.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights, kind="stable")
    if sampling.top_k:
        weights[order[sampling.top_k :]] = 0
    before = np.cumsum(weights[order]) - weights[order]
    cut = before >= sampling.top_p * weights.sum()
    cut[0] = False
    if sampling.top_p < 1:
        weights[order[cut]] = 0
    weights[weights < sampling.min_p * weights.max()] = 0
    probabilities: npt.NDArray[np.float64] = weights / weights.sum()
    return probabilities


def is_near_boundary(cumulative: npt.NDArray[np.float64], number: float) -> bool:
    return bool(np.abs(cumulative - number).min() < 1e-9)


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 10_000), samplings, st.integers(0, 2**20))
def test_sample_any_parameters_inverts_the_filtered_distribution(
    logits_seed: int, sampling: SlotSampling, position: int
) -> None:
    logits_V = make_logits(logits_seed)[0]
    cumulative = np.cumsum(kept_probabilities(logits_V, sampling))
    number = uniform(sampling.seed, sampling.choice, position)
    if is_near_boundary(cumulative, number):
        return
    expected = int(np.searchsorted(cumulative, number, side="right"))
    assert draw_one(logits_V, sampling, position).token_id == expected


def test_sample_many_positions_follows_the_distribution() -> None:
    sampling = SlotSampling(temperature=1.3, top_k=20, top_p=0.9, min_p=0.02, seed=5)
    logits_V = make_logits(3)[0]
    num_draws = 4000
    tokens = sample(
        logits_V.expand(num_draws, -1), [SamplingInput(0, sampling, p) for p in range(num_draws)]
    )
    counts = Counter(token.token_id for token in tokens)
    expected = num_draws * kept_probabilities(logits_V, sampling)
    assert set(counts) <= set(np.flatnonzero(expected))
    kept = expected > 0
    observed = np.array([counts[token_id] for token_id in range(VOCAB_SIZE)])
    chi_square = float((((observed - expected) ** 2)[kept] / expected[kept]).sum())
    degrees = int(kept.sum()) - 1
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees)


@settings(deadline=None)
@given(st.lists(samplings, min_size=2, max_size=8), st.randoms())
def test_sample_rows_in_any_order_and_batch_give_the_same_tokens(
    batch: list[SlotSampling], random: np.random.Generator
) -> None:
    logits_BV = make_logits(1, num_rows=len(batch))
    draws = [SamplingInput(slot, sampling, 7 * slot) for slot, sampling in enumerate(batch)]
    alone = [sample(logits_BV[slot : slot + 1], [draw])[0] for slot, draw in enumerate(draws)]
    order = list(range(len(batch)))
    random.shuffle(order)
    together = sample(logits_BV[order], [draws[slot] for slot in order])
    assert [token.token_id for token in together] == [alone[slot].token_id for slot in order]


def test_uniform_differs_by_seed_choice_and_position_only() -> None:
    numbers = {
        uniform(seed, choice, position)
        for seed in (0, 1, 2**64 - 1)
        for choice in (0, 1)
        for position in (0, 1, 2, 2**31)
    }
    assert len(numbers) == 24
    assert uniform(1, 2, 3) == uniform(1, 2, 3)


def test_uniform_known_counter_gives_the_recorded_number() -> None:
    """A change of generator would change the results of every seeded request."""
    assert uniform(1234, 0, 17) == 0.7829912072518975


def test_sample_greedy_takes_the_likeliest_and_ignores_the_seed() -> None:
    logits_V = make_logits(9)[0]
    tokens = {draw_one(logits_V, SlotSampling(seed=seed)).token_id for seed in range(5)}
    assert tokens == {int(logits_V.argmax())}


@pytest.mark.parametrize(
    "sampling",
    [
        SlotSampling(temperature=1.0, top_k=1, seed=3),
        SlotSampling(temperature=1.0, top_p=1e-6, seed=3),
        SlotSampling(temperature=1.0, min_p=1.0, seed=3),
        SlotSampling(temperature=1e-6, seed=3),
    ],
)
def test_sample_filtered_to_one_token_takes_the_likeliest(sampling: SlotSampling) -> None:
    logits_V = make_logits(4)[0]
    tokens = {draw_one(logits_V, sampling, position).token_id for position in range(20)}
    assert tokens == {int(logits_V.argmax())}


def test_sample_top_k_with_ties_at_the_boundary_keeps_exactly_k() -> None:
    logits_V = torch.zeros(VOCAB_SIZE)
    logits_V[17] = 1.0
    sampling = SlotSampling(temperature=1.0, top_k=4)
    tokens = {draw_one(logits_V, sampling, position).token_id for position in range(300)}
    assert tokens == {0, 1, 2, 17}


def test_sample_logprobs_are_independent_of_the_temperature() -> None:
    logits_V = make_logits(6)[0]
    expected = logits_V.log_softmax(-1)
    sampling = SlotSampling(temperature=3.0, top_k=2, num_logprobs=5, seed=1)
    token = draw_one(logits_V, sampling)
    best = expected.topk(5)
    assert token.logprob == pytest.approx(float(expected[token.token_id]), abs=1e-5)
    assert token.top_ids == tuple(best.indices.tolist())
    assert token.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-5)


def test_sample_more_logprobs_than_vocabulary_reports_all() -> None:
    token = draw_one(make_logits(0)[0], SlotSampling(num_logprobs=1000))
    assert sorted(token.top_ids) == list(range(VOCAB_SIZE))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_sample_row_that_is_not_finite_raises_naming_the_slot(value: float) -> None:
    logits_BV = make_logits(0, num_rows=3)
    logits_BV[1, 5] = value
    draws = [SamplingInput(slot, SlotSampling(), 0) for slot in (4, 9, 2)]
    with pytest.raises(NonFiniteLogitsError) as caught:
        sample(logits_BV, draws)
    assert caught.value.slot == 9
