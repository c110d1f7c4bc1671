"""Scoring of prompt tokens."""

import pytest

from runtime.errors import FrameError
from runtime.protocol.step import SampledToken, ScoredToken, SlotSampling, Step
from scheduler import FixedPolicy, Scheduler, SequenceRequest
from tests.scheduler.mesh_model import make_limits

PROMPT = tuple(range(20))


def make_scheduler(num_prompt_logprobs: int | None = 1) -> Scheduler:
    """One prompt of 20 tokens, in steps of 8."""
    limits = make_limits(max_step_tokens=8, num_steps_in_flight=4)
    scheduler = Scheduler(limits, FixedPolicy(8))
    sampling = SlotSampling(num_prompt_logprobs=num_prompt_logprobs, num_prompt_tokens=20)
    request = SequenceRequest(1, PROMPT, sampling, 4, frozenset(), 0.0, reads_prefix_cache=False)
    scheduler.add(request)
    return scheduler


def send_all(scheduler: Scheduler) -> list[Step]:
    steps = []
    while (step := scheduler.schedule(0.0)) is not None:
        steps.append(step)
    return steps


def answer(positions: range, slot: int = 0) -> list[ScoredToken]:
    return [ScoredToken(slot, position, PROMPT[position], -1.0) for position in positions]


def test_chunks_of_a_scored_prompt_include_the_following_token() -> None:
    steps = send_all(make_scheduler())
    assert [step.chunks[0].next_token_id for step in steps] == [8, 16, None]
    assert [step.chunks[0].sample for step in steps] == [False, False, True]


def test_chunks_of_other_prompts_have_no_following_token() -> None:
    steps = send_all(make_scheduler(None))
    assert [step.chunks[0].next_token_id for step in steps] == [None, None, None]


def test_score_gives_every_position_of_the_prompt_once() -> None:
    scheduler = make_scheduler()
    send_all(scheduler)
    scored_positions: list[int] = []
    for step, positions in enumerate((range(1, 9), range(9, 17), range(17, 20))):
        for event in scheduler.score(step, answer(positions)):
            assert event.sequence_id == 1
            scored_positions += [token.position for token in event.tokens]
        scheduler.update(step, [SampledToken(0, 5)] if step == 2 else [], 0.0)
    assert scored_positions == list(range(1, 20))
    [decode] = send_all(scheduler)
    assert decode.chunks[0].token_ids == (5,)
    assert scheduler.score(decode.number, []) == ()


@pytest.mark.parametrize(
    "scored", [answer(range(1, 8)), answer(range(2, 10)), answer(range(1, 9), slot=1), []]
)
def test_score_of_other_positions_is_refused(scored: list[ScoredToken]) -> None:
    scheduler = make_scheduler()
    send_all(scheduler)
    with pytest.raises(FrameError, match="positions scored by step 0"):
        scheduler.score(0, scored)


def test_score_of_a_preempted_sequence_is_dropped() -> None:
    scheduler = make_scheduler()
    send_all(scheduler)
    scheduler.isolate(99)
    assert scheduler.score(0, answer(range(1, 9))) == ()
