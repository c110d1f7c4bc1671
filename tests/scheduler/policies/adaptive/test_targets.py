"""The target and load of a cycle: targets, leads, deadlines and memory."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduler.policies.adaptive.targets import (
    EASY_SHARE,
    MAX_STRETCH,
    MIN_STRETCH,
    PromptBacklog,
    cycle_seconds,
    prompt_backlog,
    prompt_cost_weight,
)
from scheduler.policies.interface import SchedulerView
from scheduler.sequences.sequence import DEFAULT_TTFT_SECONDS, TrackedSequence
from tests.scheduler.mesh_model import make_limits, make_request


def view(
    ready: Sequence[TrackedSequence] = (),
    prefilling: Sequence[TrackedSequence] = (),
    waiting: Sequence[TrackedSequence] = (),
    now: float = 10.0,
    num_blocks_free: int = 64,
    num_admissible: int = 0,
) -> SchedulerView:
    return SchedulerView(
        now=now,
        limits=make_limits(num_blocks=64),
        in_flight=(),
        num_decoding=len(ready),
        num_blocks_free=num_blocks_free,
        ready=ready,
        prefilling=prefilling,
        waiting=waiting,
        num_admissible=num_admissible,
    )


def decoding(seconds_ago: float, num_generated: int, tpot: float | None = None) -> TrackedSequence:
    request = replace(make_request(1, prompt=4), tpot_target_seconds=tpot)
    sequence = TrackedSequence(request, [1] * (4 + num_generated), final_len=1000)
    sequence.first_token_at = 10.0 - seconds_ago
    return sequence


def prompt(num_tokens: int, ttft: float | None, arrival: float = 10.0) -> TrackedSequence:
    request = make_request(1, prompt=num_tokens, ttft_target_seconds=ttft, arrival=arrival)
    return TrackedSequence(request, list(request.prompt_ids), final_len=1000)


def test_cycle_without_target_is_unlimited() -> None:
    assert cycle_seconds(view([decoding(1.0, 11)]), None, slack=0.0) == math.inf


def test_cycle_of_sequences_on_time_equals_the_target() -> None:
    assert cycle_seconds(view([decoding(1.0, 11)]), 0.1, slack=0.0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("seconds_ago", "stretch"), [(0.2, MAX_STRETCH), (3.0, MIN_STRETCH), (0.92, 1.1)]
)
def test_lead_and_lag_stretch_the_cycle_within_bounds(seconds_ago: float, stretch: float) -> None:
    seconds = cycle_seconds(view([decoding(seconds_ago, 11)]), 0.1, slack=0.0)
    assert seconds == pytest.approx(0.1 * stretch)


def test_client_target_overrides_the_common_one() -> None:
    mixed = view([decoding(1.0, 11, tpot=0.02), decoding(1.0, 11)])
    assert cycle_seconds(mixed, 0.1, slack=0.0) == pytest.approx(MIN_STRETCH * 0.02)
    assert cycle_seconds(view([decoding(1.0, 51, tpot=0.02)]), None, slack=0.0) == pytest.approx(
        0.02
    )


def test_rate_slo_follows_the_tightest_deadline() -> None:
    backlog = (prompt(100, 2.0), prompt(300, 2.5), prompt(50, 100.0))
    assert prompt_backlog(view(waiting=backlog, num_admissible=3)).rate_slo == pytest.approx(
        400 / 2.5
    )
    assert prompt_backlog(view(waiting=backlog, num_admissible=1)).rate_slo == pytest.approx(50.0)


def test_default_deadline_counts_only_for_rate_all() -> None:
    needed = prompt_backlog(view(prefilling=[prompt(100, None)]))
    assert (needed.rate_slo, needed.rate_all) == (0.0, 100 / DEFAULT_TTFT_SECONDS)


def test_missed_deadline_is_excluded_from_rate_slo_and_makes_rate_all_infinite() -> None:
    needed = prompt_backlog(view(prefilling=[prompt(100, None), prompt(100, 1.0, arrival=8.0)]))
    assert (needed.rate_slo, needed.rate_all) == (0.0, math.inf)


@pytest.mark.parametrize(
    ("needed", "num_free", "expected"),
    [(0.0, 64, 1.0), (100.0, 64, 0.5), (500.0, 64, 0.0), (500.0, 16, 0.75), (math.inf, 0, 1.0)],
)
def test_prompt_cost_weight_grows_with_slack_and_cache_use(
    needed: float, num_free: int, expected: float
) -> None:
    prompts = PromptBacklog(rate_all=needed)
    found = prompt_cost_weight(view(num_blocks_free=num_free), prompts, 100.0 / (0.5 * EASY_SHARE))
    assert found == pytest.approx(expected)


def test_unreachable_target_is_ignored() -> None:
    late = [decoding(5.0, 11)]
    assert cycle_seconds(view(late), 0.1, slack=0.0, lone_seconds=0.2) == math.inf
    assert cycle_seconds(view(late), 0.1, slack=0.0, lone_seconds=0.09) == pytest.approx(0.06)


def test_unreachable_client_target_does_not_shorten_cycles() -> None:
    mixed = view([decoding(1.0, 11, tpot=0.001), decoding(1.0, 11)])
    assert cycle_seconds(mixed, 0.1, slack=0.0, lone_seconds=0.05) == pytest.approx(0.1)
    assert cycle_seconds(mixed, None, slack=0.0, lone_seconds=0.05) == math.inf
