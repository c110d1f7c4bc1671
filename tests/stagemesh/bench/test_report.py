"""The statistics and reports of a load test, for known times."""

from pathlib import Path

import pytest

from stagemesh.bench.callers import LoadResult, RequestRecord
from stagemesh.bench.report import LoadSettings, as_json, as_text, draw
from stagemesh.bench.statistics import summarize

LOAD = LoadSettings("toy", 3, 5.0, 1.0, 2, {"ttft": 150.0, "tpot": 60.0})


def make_result() -> LoadResult:
    """Two answers of three tokens, after 0.1 and 0.2 s, and a failure."""
    return LoadResult(
        [
            RequestRecord(0.0, 4, 3, [0.1, 0.15, 0.2], 0.2),
            RequestRecord(1.0, 4, 3, [1.2, 1.3, 1.4], 1.4),
            RequestRecord(1.5, ended_at=1.6, error="queue full"),
        ],
        duration_seconds=2.0,
    )


def test_statistics_follow_their_definitions() -> None:
    statistics = summarize(make_result(), LOAD.targets)
    assert (statistics.num_completed, statistics.num_failed) == (2, 1)
    assert (statistics.num_input_tokens, statistics.num_output_tokens) == (8, 6)
    assert (statistics.request_rate, statistics.output_rate, statistics.token_rate) == (
        1.0,
        3.0,
        7.0,
    )
    assert statistics.goodput == 0.5
    assert statistics.spreads["ttft"].mean == pytest.approx(150)
    assert statistics.spreads["tpot"].median == pytest.approx(75)
    assert statistics.spreads["itl"].p99 == pytest.approx(100)
    assert statistics.spreads["e2el"].mean == pytest.approx(300)


def test_goodput_without_targets_is_none_and_one_token_meets_any_tpot() -> None:
    assert summarize(make_result(), {}).goodput is None
    single = LoadResult([RequestRecord(0.0, 4, 1, [0.1], 0.1)], 1.0)
    assert summarize(single, {"tpot": 0.0}).goodput == 1.0


def test_text_report_has_vllms_wording() -> None:
    text = as_text(LOAD, summarize(make_result(), LOAD.targets))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert "Successful requests: 2" in lines
    assert "Request rate configured (RPS): 5.00" in lines
    assert "---------------Time to First Token----------------" in lines
    assert "-----Time per Output Token (excl. 1st token)------" in lines
    assert "---------------Inter-token Latency----------------" in lines
    for name in ("TTFT", "TPOT", "ITL", "E2EL"):
        for word in ("Mean", "Median", "P99"):
            assert any(line.startswith(f"{word} {name} (ms): ") for line in lines)


def test_json_report_includes_failed_requests() -> None:
    result = make_result()
    body = as_json(LOAD, summarize(result, LOAD.targets), result)
    assert (body["completed"], body["failed"], body["request_goodput"]) == (2, 1, 0.5)
    assert body["errors"] == ["", "", "queue full"]
    assert body["ttfts"] == [0.1, pytest.approx(0.2), None]
    assert [len(gaps) for gaps in body["itls"]] == [2, 2, 0]
    assert body["p99_itl_ms"] == pytest.approx(100)


def test_plot_without_successful_requests_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run.png"
    draw(LOAD, LoadResult(make_result().records[2:], 1.0), path)
    draw(LOAD, make_result(), path)
    assert path.read_bytes().startswith(b"\x89PNG")
