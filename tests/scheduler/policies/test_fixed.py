"""The constant token budget, and even shares of decodes."""

import pytest

from scheduler import FixedPolicy
from scheduler.batching.microbatch import MicrobatchDraft
from scheduler.cost_model.feedback import SentStep, StepWork
from scheduler.policies.interface import SchedulerView
from scheduler.sequences.sequence import TrackedSequence
from tests.scheduler.mesh_model import make_limits, make_request


def make_view(
    num_ready: int,
    num_decoding: int | None = None,
    num_waiting: int = 0,
    max_in_flight: int = 4,
    num_in_flight: int = 0,
) -> SchedulerView:
    sequences = tuple(
        TrackedSequence(make_request(i, prompt=100), [1] * 100, final_len=200)
        for i in range(num_ready + num_waiting)
    )
    return SchedulerView(
        now=0.0,
        limits=make_limits(num_steps_in_flight=max_in_flight),
        in_flight=tuple(SentStep(i, StepWork(), 0.0, i) for i in range(num_in_flight)),
        num_decoding=num_ready if num_decoding is None else num_decoding,
        num_blocks_free=100,
        ready=sequences[:num_ready],
        prefilling=(),
        waiting=sequences[num_ready:],
        num_admissible=num_waiting,
    )


@pytest.mark.parametrize(
    ("num_ready", "num_decoding", "num_in_flight", "expected"),
    [
        (32, 32, 0, 8),  # all are ready: an even share of them
        (8, 32, 3, 8),  # one microbatch came back
        (12, 32, 3, 8),  # more are ready, but the share is a limit
        (6, 9, 2, 3),  # two microbatches can be sent: half of the ready ones each
        (1, 1, 0, 1),
        (0, 5, 2, 0),
    ],
)
def test_choose_decodes_takes_an_even_share_of_the_longest_waiting(
    num_ready: int, num_decoding: int, num_in_flight: int, expected: int
) -> None:
    view = make_view(num_ready, num_decoding, num_in_flight=num_in_flight)
    assert FixedPolicy(100).choose_decodes(view) == list(range(expected))


def test_choose_decodes_beyond_the_budget_takes_the_budget() -> None:
    assert len(FixedPolicy(16).choose_decodes(make_view(100, max_in_flight=1))) == 16


def test_choose_decodes_with_prompts_reserves_a_part_of_the_budget() -> None:
    view = make_view(100, num_waiting=1, max_in_flight=1)
    assert len(FixedPolicy(16).choose_decodes(view)) == 14
    assert len(FixedPolicy(1).choose_decodes(view)) == 1


def test_chunk_tokens_takes_the_rest_of_the_budget() -> None:
    view = make_view(0, num_waiting=1)
    draft = MicrobatchDraft()
    assert FixedPolicy(64).chunk_tokens(view, draft, view.waiting[0]) == 64
    draft.num_tokens = 60
    assert FixedPolicy(64).chunk_tokens(view, draft, view.waiting[0]) == 4
    assert FixedPolicy(500).chunk_tokens(view, draft, view.waiting[0]) == 100
