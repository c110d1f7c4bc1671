"""Validation of requests."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.requests.validation import (
    MAX_LOGPROBS_PER_REQUEST,
    MAX_MESSAGES_PER_REQUEST,
    MAX_STOP_TOKEN_IDS,
    MAX_TOKEN_IDS_PER_REQUEST,
    check_num_logprobs,
    check_request,
    check_sampling,
)
from runtime.errors import BadRequestError, InvalidRequestError
from runtime.protocol.inference_types import (
    Chat,
    ChatMessage,
    GenerationRequest,
    Sampling,
    TokenIds,
)

MESSAGE = ChatMessage("user", "")
GOOD = GenerationRequest(prompts=("hello",))
floats = st.floats(width=32)


def check(request: GenerationRequest) -> None:
    check_request(request, served_model="toy", vocab_size=100, max_prompts=4)


@given(temperature=floats, top_p=floats, min_p=floats, num_logprobs=st.integers(0, 300))
def test_check_sampling_any_numbers_are_valid_or_refused(
    temperature: float, top_p: float, min_p: float, num_logprobs: int
) -> None:
    sampling = Sampling(
        temperature=temperature, top_p=top_p, min_p=min_p, num_logprobs=num_logprobs
    )
    sane = (
        0 <= temperature < math.inf and 0 < top_p <= 1 and 0 <= min_p <= 1 and num_logprobs <= 100
    )
    if sane:
        check_sampling(sampling, vocab_size=100)
    else:
        with pytest.raises(InvalidRequestError):
            check_sampling(sampling, vocab_size=100)


@pytest.mark.parametrize(
    ("field", "sampling"),
    [
        ("top_k", Sampling(top_k=-1)),
        ("seed", Sampling(seed=2**64)),
        ("seed", Sampling(seed=-1)),
        ("num_logprobs", Sampling(num_logprobs=101)),
    ],
)
def test_check_sampling_out_of_range_names_the_field(field: str, sampling: Sampling) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_sampling(sampling, vocab_size=100)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, prompts=()),
        replace(GOOD, prompts=GOOD.prompts * 5),
        replace(GOOD, prompts=(TokenIds(()),)),
        replace(GOOD, prompts=(TokenIds((100,)),)),
        replace(GOOD, prompts=(TokenIds((-1,)),)),
        replace(GOOD, model="other"),
        replace(GOOD, max_tokens=-1),
        replace(GOOD, request_id="a\nb"),
        replace(GOOD, stop_token_ids=(100,)),
        replace(GOOD, prompts=(TokenIds((1,) * (MAX_TOKEN_IDS_PER_REQUEST + 1)),)),
        replace(GOOD, stop_token_ids=(1,) * (MAX_STOP_TOKEN_IDS + 1)),
        replace(GOOD, prompts=(Chat((MESSAGE,) * (MAX_MESSAGES_PER_REQUEST + 1)),)),
    ],
)
def test_check_request_with_one_invalid_field_is_refused(bad: GenerationRequest) -> None:
    check(GOOD)
    with pytest.raises(BadRequestError):
        check(bad)


def test_check_num_logprobs_beyond_the_bound_reports_the_largest_valid_number() -> None:
    check_num_logprobs(64, MAX_LOGPROBS_PER_REQUEST // 64)
    with pytest.raises(InvalidRequestError, match="at most 32"):
        check_num_logprobs(64, MAX_LOGPROBS_PER_REQUEST // 32)
