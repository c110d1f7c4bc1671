"""The line that sums up what a coordinator did."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from coordinator import activity_log
from coordinator.activity_log import Totals, log_summary
from coordinator.coordinator import Coordinator
from coordinator.engine.outputs import EngineStats
from tests.coordinator.toy_mesh import collect, token_request, toy_mesh


def idle_coordinator(num_requests: int = 0) -> Coordinator:
    stats = EngineStats(num_requests=num_requests, num_running=num_requests)
    router = SimpleNamespace(stats=lambda: stats)
    return cast("Coordinator", SimpleNamespace(router=router, replicas=()))


def lines(coordinator: Coordinator, before: Totals, now: Totals) -> list[Any]:
    with capture_logs() as logs:
        log_summary(coordinator, before, now)
    return logs


def test_summary_of_an_idle_interval_says_nothing() -> None:
    done = Totals(10, 20, 3.0, 4.0)
    assert lines(idle_coordinator(), done, done) == []


def test_summary_of_work_gives_rates_and_the_bubble_of_the_interval() -> None:
    (line,) = lines(idle_coordinator(), Totals(0, 100, 1.0, 1.0), Totals(50, 300, 4.0, 2.0))
    assert (line["tokens_per_second"], line["prompt_tokens_per_second"]) == (20.0, 5.0)
    assert (line["bubble"], line["kv_used"]) == ("25%", "-")


def test_summary_over_an_epochs_end_counts_the_new_epoch_alone() -> None:
    (line,) = lines(idle_coordinator(1), Totals(0, 0, 9.0, 9.0), Totals(0, 1, 1.0, 3.0))
    assert line["bubble"] == "75%"


async def test_summary_of_a_live_mesh_comes_while_requests_run(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_log, "INTERVAL_SECONDS", 0.01)
    with capture_logs() as logs:
        async with toy_mesh(toy_folder) as mesh:
            await mesh.until_ready()
            await collect(mesh.infer(token_request([1, 2, 3], max_tokens=100)))
            await mesh.until_idle()
    summaries = [line for line in logs if line["event"] == "summary"]
    assert summaries
    assert sum(line["tokens_per_second"] for line in summaries) > 0
