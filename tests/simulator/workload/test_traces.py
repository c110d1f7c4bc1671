"""Traces: reading, synthesis, scaling."""

from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from runtime.errors import InvalidRequestError
from simulator.workload.traces import (
    Lengths,
    LoadShape,
    TraceRequest,
    at_rate,
    fit,
    mean_rate,
    read_trace,
    synthetic,
)

SHAPE = LoadShape(Lengths(100, 0.5, 300), Lengths(10, 0.5, 30), burstiness=4.0)


@pytest.fixture
def data() -> Path:
    return Path(str(resources.files("simulator") / "data"))


def test_azure_trace_begins_at_zero_with_its_lengths(data: Path) -> None:
    trace = read_trace(data / "azure_code_2023_head.csv")
    assert trace[0] == TraceRequest(0.0, 4808, 10)
    assert trace[1].arrival == pytest.approx(0.052)
    assert len(trace) == 600


def test_mooncake_trace_has_equal_tokens_where_hashes_are_equal(data: Path) -> None:
    first, second, *_ = read_trace(data / "mooncake_conversation_head.jsonl", max_requests=10)
    ids = [first.prompt_ids(1), second.prompt_ids(2)]
    assert [len(prompt) for prompt in ids] == [6758, 7322]
    assert ids[0][:512] == ids[1][:512]
    assert ids[0][512] != ids[1][512]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n"),
        ("a.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03.9799600,5\n"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnever,5,5\n"),
        ("a.jsonl", "{]\n"),
        ("a.jsonl", '{"timestamp": 0}\n'),
        ("a.jsonl", "[1]\n"),
        ("a.jsonl", '{"timestamp": "x", "input_length": 1, "output_length": 1, "hash_ids": []}\n'),
        ("a.jsonl", ""),
        ("a.csv", ""),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03\n"),
    ],
)
def test_read_trace_of_another_format_names_the_file_and_the_format(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    format = "hash_ids" if name.endswith("l") else "ContextTokens and GeneratedTokens"
    with pytest.raises(InvalidRequestError, match=f"{name}.*{format}"):
        read_trace(tmp_path / name)


def test_read_trace_of_a_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"none\.csv"):
        read_trace(tmp_path / "none.csv")


def test_synthetic_trace_has_its_rate_lengths_and_seed() -> None:
    trace = synthetic(SHAPE, 4000, rate=5.0, seed=3)
    assert mean_rate(trace) == pytest.approx(5.0, rel=0.2)
    assert all(1 <= request.num_prompt_tokens <= 300 for request in trace)
    assert trace == synthetic(SHAPE, 4000, rate=5.0, seed=3)
    assert trace != synthetic(SHAPE, 4000, rate=5.0, seed=4)


@pytest.mark.parametrize("num_requests", [1, 3])
def test_at_rate_simultaneous_arrivals_are_unchanged(num_requests: int) -> None:
    trace = (TraceRequest(0.0, 5, 5),) * num_requests
    assert at_rate(trace, 3.0) == trace


@pytest.mark.parametrize("rate", [0.5, 20.0])
def test_at_rate_scales_arrivals_only(rate: float) -> None:
    trace = synthetic(SHAPE, 50, rate=5.0, seed=3)
    stretched = at_rate(trace, rate)
    assert mean_rate(stretched) == pytest.approx(rate)
    pairs = zip(trace, stretched, strict=True)
    assert all(replace(before, arrival=after.arrival) == after for before, after in pairs)


def test_fit_truncates_to_the_context() -> None:
    cut = fit([TraceRequest(0.0, 500, 10), TraceRequest(0.0, 90, 30)], max_model_len=100)
    assert [(each.num_prompt_tokens, each.num_output_tokens) for each in cut] == [(99, 1), (90, 10)]
