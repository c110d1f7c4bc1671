"""How a model is cut over ranks, and which ranks are too many."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import TooManyRanksError
from runtime.model_config.model_config import ModelConfig, load_model_config
from runtime.model_config.tensor_parallel import RankShares, share, share_widths
from tests.tiny_models import make_tiny_llama


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    """As SmolLM2-135M: 9 query heads read 3 key/value heads."""
    folder = make_tiny_llama(tmp_path_factory.mktemp("tiny"), "tied_gqa").folder
    return replace(load_model_config(folder), num_heads=9, num_kv_heads=3)


@given(total=st.integers(1, 1000), size=st.integers(1, 40))
def test_share_of_any_total_covers_it_in_order_and_evenly(total: int, size: int) -> None:
    shares = [share(total, rank, size) for rank in range(size)]
    assert [index for each in shares for index in each] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert share_widths(total, size) == tuple(map(len, shares))


def test_rank_shares_of_heads_that_do_not_divide_are_uneven(config: ModelConfig) -> None:
    """Case 22 (dllama#139, #98)."""
    first, second = (RankShares.of(config, rank, 2) for rank in range(2))
    assert (first.kv_heads, first.heads) == (range(2), range(6))
    assert (second.kv_heads, second.heads) == (range(2, 3), range(6, 9))


def test_rank_shares_of_more_ranks_than_heads_are_refused_with_the_numbers(
    config: ModelConfig,
) -> None:
    """Case 22 (dllama#139, #98)."""
    with pytest.raises(TooManyRanksError) as caught:
        RankShares.of(config, 0, 4)
    assert str(caught.value) == (
        "4 ranks a stage for 3 key/value heads (9 query heads): each rank needs one; "
        "use at most 3 ranks"
    )


def test_rank_shares_of_a_single_key_value_head_copy_it_and_cut_its_queries(
    config: ModelConfig,
) -> None:
    """Gemma 3 1B has 4 query heads and 1 key/value head."""
    multi_query = replace(config, num_heads=4, num_kv_heads=1)
    shares = [RankShares.of(multi_query, rank, 3) for rank in range(3)]
    assert [each.heads for each in shares] == [range(2), range(2, 3), range(3, 4)]
    assert [each.kv_heads for each in shares] == [range(1)] * 3
    with pytest.raises(TooManyRanksError, match=r"5 ranks .* 1 key/value .*; use at most 4 ranks"):
        RankShares.of(multi_query, 0, 5)


def test_rank_shares_of_one_rank_are_the_whole_model(config: ModelConfig) -> None:
    shares = RankShares.of(config)
    assert shares.heads == range(9)
    assert shares.hidden == range(config.hidden_size)
    assert shares.vocab == range(config.vocab_size)
    assert shares.experts == range(0)
