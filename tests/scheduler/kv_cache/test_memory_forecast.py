"""Admission by the predicted peak of the cache."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.batching import admission_control
from scheduler.kv_cache.memory_forecast import NUM_TRUSTED, OutputLengths, num_admissible
from scheduler.sequences.sequence import TrackedSequence
from tests.scheduler.mesh_model import Mesh, make_limits, make_request


def sequence(number: int, prompt: int, generated: int, max_tokens: int) -> TrackedSequence:
    request = make_request(number, prompt=prompt, max_tokens=max_tokens)
    return TrackedSequence(request, [1] * (prompt + generated), prompt + max_tokens)


def learnt(*lengths: int) -> OutputLengths:
    history = OutputLengths()
    for length in lengths:
        history.add(length)
    return history


def test_predict_known_lengths_returns_quantile_of_longer_ones() -> None:
    history = learnt(*range(1, 101))
    predicted = history.predict(np.array([0.0, 50.0, 50.0]), np.array([0.5, 0.0, 0.99]))
    assert predicted.tolist() == [51.0, 51.0, 100.0]


def test_predict_beyond_known_lengths_doubles() -> None:
    history = learnt(*[10] * NUM_TRUSTED)
    assert history.predict(np.array([30.0]), np.array([0.5])).tolist() == [60.0]


def test_predict_with_few_answers_uses_the_guess() -> None:
    one = learnt(1)
    assert one.predict(np.array([0.0]), np.array([0.99])).tolist() == [512.0]


@pytest.mark.parametrize(("capacity", "expected"), [(60.0, 2), (55.0, 2), (54.0, 1), (39.0, 0)])
def test_num_admissible_fills_the_capacity_at_the_peak(capacity: float, expected: int) -> None:
    running = [sequence(1, prompt=10, generated=5, max_tokens=20)]
    waiting = [sequence(2, 5, 0, 10), sequence(3, 5, 0, 10)]
    history = learnt(*[1000] * NUM_TRUSTED)  # all run to their token limits
    assert num_admissible(running, waiting, history, capacity) == expected


def test_num_admissible_with_early_ends_admits_more() -> None:
    history = learnt(*[10] * NUM_TRUSTED)
    running = [sequence(1, prompt=50, generated=9, max_tokens=100)]
    waiting = [sequence(2, prompt=20, generated=0, max_tokens=100)]
    # One token later the first holds 60 and the second 21; the second ends with 30.
    assert num_admissible(running, waiting, history, 81.0) == 1
    assert num_admissible(running, waiting, history, 80.0) == 0


def test_num_admissible_without_running_admits_the_first() -> None:
    history = learnt(*[10] * NUM_TRUSTED)
    assert num_admissible([], [sequence(1, 50, 0, 100)], history, 20.0) == 1


def test_admission_waits_for_memory_instead_of_preempting() -> None:
    mesh = Mesh(make_limits(num_blocks=8, block_size=2, num_steps_in_flight=1))
    for number in range(4):
        mesh.add(make_request(number, prompt=4, max_tokens=8))
    mesh.send_all()
    assert (mesh.scheduler.num_running, mesh.scheduler.num_waiting) == (1, 3)
    mesh.finish()
    assert mesh.scheduler.num_preemptions == 0


def test_num_admissible_shared_prompt_counts_once() -> None:
    mesh = Mesh(make_limits(num_blocks=20, block_size=2, num_steps_in_flight=1))
    for number in range(5):
        mesh.add(make_request(number, prompt=25, max_tokens=4, family=0))
    for _ in range(2):
        mesh.send()
        mesh.receive()
    mesh.send()
    assert mesh.scheduler.num_running >= 2  # 28 tokens each, and room for 40
    mesh.finish()


@given(
    running=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), max_size=12),
    waiting=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    capacity=st.floats(1.0, 2000.0),
)
def test_num_admissible_equals_exhaustive_search(
    running: list[tuple[int, int]], waiting: list[int], capacity: float
) -> None:
    runs = [
        sequence(number, prompt, generated, 64)
        for number, (prompt, generated) in enumerate(running)
    ]
    waits = [sequence(100 + number, prompt, 0, 64) for number, prompt in enumerate(waiting)]
    lengths = learnt(*range(1, 40))
    found = num_admissible(runs, waits, lengths, capacity)
    fitting = [
        number
        for number in range(1, len(waits) + 1)
        if num_admissible(
            [*runs, *waits[: number - 1]], waits[number - 1 : number], lengths, capacity
        )
    ]
    by_one = next((n for n in range(len(waits)) if n + 1 not in fitting), len(waits))
    assert found == (by_one if runs else max(1, by_one))


def test_forecast_with_many_running_holds_for_some_steps_and_all_finish() -> None:
    limits = make_limits(
        num_blocks=400,
        block_size=2,
        max_sequences=300,
        max_step_tokens=200,
        num_steps_in_flight=4,
        max_waiting=300,
    )
    mesh = Mesh(limits)
    mesh.expect_short_answers()
    for number in range(300):
        mesh.add(make_request(number, prompt=4, max_tokens=6 + number % 7))
    with mock.patch.object(admission_control, "num_admissible", wraps=num_admissible) as forecasts:
        mesh.finish()
    assert 0 < forecasts.call_count < 0.7 * mesh.stage.num_steps


def test_forecast_after_restart_is_discarded() -> None:
    limits = make_limits(num_blocks=400, max_sequences=300, max_step_tokens=2000, max_waiting=300)
    mesh = Mesh(limits)
    for number in range(300):
        mesh.add(make_request(number, prompt=4, max_tokens=16))
    with mock.patch.object(admission_control, "num_admissible", wraps=num_admissible) as forecasts:
        mesh.send()
        mesh.receive()
        mesh.send()
        assert mesh.scheduler.num_running >= admission_control.NUM_RUNNING_PER_STEP
        num_forecasts = forecasts.call_count
        mesh.restart(replace(limits, num_blocks=10))
        mesh.send()
        assert forecasts.call_count > num_forecasts
    assert mesh.scheduler.num_running == 2
