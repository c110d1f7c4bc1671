"""The pauses between attempts."""

import random

import pytest

from runtime.backoff import Backoff


def test_pause_without_jitter_doubles_up_to_the_maximum() -> None:
    backoff = Backoff(first_seconds=0.1, max_seconds=0.5)
    assert [backoff.pause_seconds(n) for n in range(4)] == pytest.approx([0.1, 0.2, 0.4, 0.5])


def test_pause_after_thousands_of_attempts_is_the_maximum() -> None:
    assert Backoff(0.1, 5.0).pause_seconds(10_000) == 5.0


def test_pause_with_jitter_is_at_least_half_of_the_full_one() -> None:
    backoff, jitter = Backoff(1.0, 5.0), random.Random(0)

    pauses = [backoff.pause_seconds(n, jitter) for n in range(6)]

    for pause, longest in zip(pauses, (1.0, 2.0, 4.0, 5.0, 5.0, 5.0), strict=True):
        assert longest / 2 <= pause <= longest
    assert len(set(pauses)) == 6
