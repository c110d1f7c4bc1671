"""Prompts and send times of a load test."""

import itertools
import statistics
from pathlib import Path

import pytest

from runtime.errors import InvalidRequestError
from stagemesh.bench.workload import BenchRequest, random_requests, read_requests, send_times
from stagemesh.units import parse_targets


def test_random_requests_depend_on_the_pool_and_the_seed() -> None:
    requests = random_requests([3, 5, 9], 20, input_len=7, output_len=4, seed=1)
    assert [len(ask.prompt) for ask in requests] == [7] * 20
    assert {token for ask in requests for token in ask.prompt} == {3, 5, 9}
    assert requests == random_requests([3, 5, 9], 20, input_len=7, output_len=4, seed=1)
    assert requests != random_requests([3, 5, 9], 20, input_len=7, output_len=4, seed=2)


def test_read_requests_repeats_a_file_with_too_few_prompts(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"prompt": "b", "max_tokens": 3, "id": 7}\n')
    first, second = BenchRequest("a", 9), BenchRequest("b", 3)
    assert read_requests(path, 3, output_len=9) == [first, second, first]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ('{"prompt": "a"}\n{', "line 2"),
        ('"a"', "line 1"),
        ('{"text": "a"}', "is not"),
        ('{"prompt": ""}', "is not"),
        ('{"prompt": "a", "max_tokens": 0}', "is not"),
    ],
)
def test_read_requests_with_a_malformed_line_raises_with_its_number(
    content: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidRequestError, match=message):
        read_requests(path, 3, output_len=9)


def test_send_times_without_a_rate_are_zero() -> None:
    assert send_times(3, None, 1.0, seed=0) == [0.0] * 3


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 100.0])
def test_send_times_have_the_rate_and_the_burstiness(burstiness: float) -> None:
    moments = send_times(20_000, rate=50, burstiness=burstiness, seed=3)
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    assert moments[0] == 0
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.05)
    # Of a gamma distribution with this shape.
    variation = statistics.stdev(gaps) / statistics.mean(gaps)
    assert variation == pytest.approx(burstiness**-0.5, rel=0.05)


def test_parse_targets_accepts_known_names_only() -> None:
    assert parse_targets(["ttft:500", "tpot:50.5"]) == {"ttft": 500.0, "tpot": 50.5}
    for wrong in ("itl:3", "ttft", "ttft:x", "ttft:-1"):
        with pytest.raises(InvalidRequestError):
            parse_targets([wrong])
