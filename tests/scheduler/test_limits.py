"""The limits of an epoch."""

import pytest

from runtime.errors import NeverFitsError
from tests.scheduler.mesh_model import make_limits


@pytest.mark.parametrize(("num_positions", "expected"), [(0, 0), (1, 1), (4, 1), (5, 2)])
def test_blocks_for_positions_rounds_up(num_positions: int, expected: int) -> None:
    assert make_limits(block_size=4).blocks_for(num_positions) == expected


def test_max_new_tokens_within_the_context_is_the_rest_of_it() -> None:
    assert make_limits(num_blocks=100, max_model_len=64).max_new_tokens(60) == 4


@pytest.mark.parametrize("num_prompt_tokens", [1, 8, 16])
def test_max_new_tokens_within_the_cache_is_the_most_that_fits(num_prompt_tokens: int) -> None:
    limits = make_limits(num_blocks=4, block_size=4, max_model_len=64)
    most = limits.max_new_tokens(num_prompt_tokens)
    limits.check_fits(num_prompt_tokens, most)
    with pytest.raises(NeverFitsError):
        limits.check_fits(num_prompt_tokens, most + 1)
