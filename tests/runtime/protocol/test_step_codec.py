"""Tests that steps and results survive the wire unchanged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import stage_pb2
from runtime.protocol import result_codec
from runtime.protocol.result_codec import (
    activity_from_proto,
    activity_to_proto,
    result_from_proto,
    result_to_proto,
    result_to_protos,
    timing_from_proto,
    timing_to_proto,
)
from runtime.protocol.step import (
    RankActivity,
    SampledToken,
    ScoredToken,
    SendTiming,
    SequenceChunk,
    SlotOpening,
    SlotSampling,
    StageTiming,
    Step,
    StepResult,
)
from runtime.protocol.step_codec import header_to_step, step_to_header

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
float32 = st.floats(width=32, allow_nan=False)
seconds = st.floats(0.0, 3e9)


def _tuples(elements: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(elements, max_size=5).map(tuple)


samplings = st.builds(
    SlotSampling,
    temperature=float32,
    top_k=uint32,
    top_p=float32,
    min_p=float32,
    seed=uint64,
    choice=uint32,
    num_logprobs=uint32,
    suppressed_ids=_tuples(uint32),
    suppressed_until=uint32,
    presence_penalty=float32,
    frequency_penalty=float32,
    repetition_penalty=float32,
    num_prompt_tokens=uint32,
    logit_bias=st.lists(st.tuples(uint32, float32), max_size=3).map(tuple),
    grammar=st.text(),
    num_prompt_logprobs=st.none() | uint32,
)
chunks = st.builds(
    SequenceChunk,
    slot=uint32,
    position=uint32,
    token_ids=_tuples(uint32),
    new_block_ids=_tuples(uint32),
    sample=st.booleans(),
    next_token_id=st.none() | uint32,
)
openings = st.builds(SlotOpening, uint32, samplings, _tuples(uint32), _tuples(uint32))
steps = st.builds(
    Step,
    number=uint64,
    released_slots=_tuples(uint32),
    opened_slots=st.lists(openings, max_size=3).map(tuple),
    chunks=st.lists(chunks, max_size=3).map(tuple),
)
sampled_tokens = st.builds(
    SampledToken,
    slot=uint32,
    token_id=uint32,
    logprob=float32,
    top_ids=_tuples(uint32),
    top_logprobs=st.lists(float32, max_size=5).map(tuple),
)
scored_tokens = st.builds(
    ScoredToken,
    slot=uint32,
    position=uint32,
    token_id=uint32,
    logprob=float32,
    top_ids=_tuples(uint32),
    top_logprobs=st.lists(float32, max_size=5).map(tuple),
)
sends = st.builds(SendTiming, uint64, seconds, seconds, uint32, uint64)
timings = st.builds(StageTiming, seconds, seconds, seconds, seconds, st.none() | sends)
results = st.builds(
    StepResult,
    step=uint64,
    sampled=st.lists(sampled_tokens, max_size=3).map(tuple),
    timing=timings,
    scored=st.lists(scored_tokens, max_size=9).map(tuple),
)


@given(steps)
def test_step_through_bytes_returns_equal(step: Step) -> None:
    data = step_to_header(step).SerializeToString()

    assert header_to_step(stage_pb2.StepHeader.FromString(data)) == step


@given(results)
def test_result_through_bytes_returns_equal(result: StepResult) -> None:
    data = result_to_proto(result).SerializeToString()

    assert result_from_proto(stage_pb2.StepResult.FromString(data)) == result


@given(results, st.integers(1, 20))
def test_result_in_parts_returns_equal_and_each_is_bounded(result: StepResult, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_codec, "MAX_LOGPROBS_PER_MESSAGE", most)
        *parts, last = result_to_protos(result)

    assert all(part.continues for part in parts)
    assert not last.continues
    assert result_from_proto(last, parts) == result
    for part in (*parts, last):
        num_logprobs = sum(1 + len(token.top_ids) for token in part.scored)
        assert num_logprobs <= most or len(part.scored) == 1


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), -float("inf"), 1e300])
def test_implausible_seconds_become_zero(seconds: float) -> None:
    """Nor do they break a counter, which only grows, or stay in a sum for ever."""
    timing = StageTiming(seconds, seconds, seconds, seconds, SendTiming(3, seconds, seconds, 1, 10))
    none = StageTiming(0.0, 0.0, 0.0, 0.0, SendTiming(3, 0.0, 0.0, 1, 10))
    assert timing_from_proto(timing_to_proto(timing)) == none
    activity = activity_to_proto(RankActivity(7, seconds, seconds, 90), stage_pb2.EpochId())
    assert activity_from_proto(activity) == RankActivity(7, 0.0, 0.0, 90)


def test_temperature_beyond_float32_is_rounded_once() -> None:
    step = Step(0, opened_slots=(SlotOpening(1, SlotSampling(temperature=0.7)),))

    first = header_to_step(step_to_header(step))
    second = header_to_step(step_to_header(first))

    assert first.opened_slots[0].sampling.temperature != 0.7
    assert second == first
