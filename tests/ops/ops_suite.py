"""Dashboards and alerts of a real Prometheus, for a mesh under load and after a worker's death.

`make test-ops` runs it; its name keeps it out of other runs, because it needs Prometheus installed.
Where STAGEMESH_PICTURES names a folder, its `dashboards` gets a picture of every dashboard's rows.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.grafana.generate import DASHBOARDS, expressions
from deploy.grafana.panels import RATE
from stagemesh import GenerationRequest, StagemeshRpcError, TokenIds
from tests.integration.processes import Mesh, serving
from tests.integration.tiny_chat import MODEL_NAME, make_tiny_chat
from tests.ops.pictures import draw
from tests.ops.prometheus import DEPLOY, Prometheus, prometheus

pytestmark = pytest.mark.timeout(600)

# All prompts share a prefix.
REQUEST = GenerationRequest(
    prompts=tuple(TokenIds((*range(40, 60), 5 + index)) for index in range(6)),
    max_tokens=80,
    ignore_eos=True,
)
# Long enough to kill a worker before it ends.
LONG_REQUEST = replace(REQUEST, max_tokens=400)
NUM_REPLICAS = 2
# Ranks per stage.
RANKS = (2, 1)
NUM_TARGETS = 1 + NUM_REPLICAS * sum(RANKS)
WAIT_SECONDS = 180.0
PICTURES = os.environ.get("STAGEMESH_PICTURES")
# Load after the worker's death, for the pictures.
PICTURE_SECONDS = 45.0


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    if missing:
        pytest.exit(
            f"not installed: {', '.join(missing)} (on Debian: apt-get install prometheus)", 1
        )


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh of a tiny model: two replicas of two stages, the first with two ranks."""
    model = make_tiny_chat(tmp_path_factory.mktemp("models") / MODEL_NAME)
    split = ("--dp", str(NUM_REPLICAS), "--pp", str(len(RANKS)), "--tp", ",".join(map(str, RANKS)))
    with serving(str(model.model.folder), *split, "--kv-memory", "64MiB") as one:
        yield one
        one.stop()


@pytest.fixture(scope="module")
def watcher(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus after load, a rejected request, a worker's death and load again."""
    with prometheus(mesh.http, tmp_path_factory.mktemp("prometheus")) as server:
        until(server.is_up, mesh=None)
        start = time.time()
        until(lambda: len(server.numbers("up == 1")) == NUM_TARGETS, mesh)
        _be_refused(mesh)
        _lose_a_worker(mesh)
        until(lambda: bool(server.numbers("stagemesh_epoch_ends_total > 0")), mesh)
        until(lambda: not _empty_panels(server), mesh)
        if PICTURES:
            _draw_dashboards(server, mesh, start)
        yield server


def until(is_true: Callable[[], bool], mesh: Mesh | None) -> None:
    """Keeps the mesh under load until the condition holds or the deadline passes."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_true() and time.monotonic() < deadline:
        if mesh is not None:
            mesh.ask(REQUEST)


def panel_queries() -> list[str]:
    """The queries of all dashboards."""
    return [query.replace(RATE, "[1m]") for query in expressions(with_gpus=False)]


def _empty_panels(server: Prometheus) -> list[str]:
    return [query for query in panel_queries() if not server.numbers(query)]


def _be_refused(mesh: Mesh) -> None:
    no_token = GenerationRequest(prompts=(TokenIds((10**6,)),))
    with pytest.raises(StagemeshRpcError):
        mesh.ask(no_token)


def _lose_a_worker(mesh: Mesh) -> None:
    """Kills a worker while both replicas have sequences, so that one takes over the other's."""
    workers = [child for child in mesh.command.descendants() if "worker" in child.cmdline()]
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(mesh.ask, LONG_REQUEST)
        while mesh.state().num_running < len(REQUEST.prompts) and not asking.done():
            pass
        workers[-1].kill()
        asking.result()


def _draw_dashboards(server: Prometheus, mesh: Mesh, start: float) -> None:
    ends = time.monotonic() + PICTURE_SECONDS
    until(lambda: time.monotonic() > ends, mesh)
    folder = Path(str(PICTURES)) / "dashboards"
    folder.mkdir(parents=True, exist_ok=True)
    for dashboard in DASHBOARDS:
        draw(server, dashboard, folder, start, time.time())


def test_targets_are_the_coordinator_and_the_workers_that_it_lists(
    watcher: Prometheus, mesh: Mesh
) -> None:
    num_workers = NUM_TARGETS - 1
    until(lambda: watcher.numbers("sum(up)") == [float(NUM_TARGETS)], mesh)
    targets = watcher.get("targets", state="active")["activeTargets"]
    jobs = sorted(target["labels"]["job"] for target in targets if target["health"] == "up")
    assert jobs == ["stagemesh-coordinator", *num_workers * ["stagemesh-workers"]]


def test_every_panel_has_data(watcher: Prometheus) -> None:
    assert _empty_panels(watcher) == []


def test_rejection_death_and_handover_are_visible(watcher: Prometheus) -> None:
    for name in ("requests_rejected", "epoch_ends", "handovers"):
        assert sum(watcher.numbers(f"stagemesh_{name}_total")) > 0, name


def test_waits_between_the_ranks_of_a_stage_are_visible(watcher: Prometheus) -> None:
    assert sum(watcher.numbers("stagemesh_worker_wait_seconds_total")) > 0


def test_every_alert_rule_is_evaluated_and_none_fires(watcher: Prometheus) -> None:
    (group,) = watcher.get("rules")["groups"]
    assert {rule["health"] for rule in group["rules"]} == {"ok"}
    assert [rule["name"] for rule in group["rules"] if rule["state"] == "firing"] == []


def test_metrics_obey_the_conventions(watcher: Prometheus, mesh: Mesh) -> None:
    """The gauges that the Gateway API's inference extension requires of a model server exist."""
    metadata = watcher.get("metadata")
    for name in ("requests_waiting", "requests_running", "kv_cache_utilization_ratio"):
        assert metadata[f"stagemesh_{name}"][0]["type"] == "gauge"


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")],
    ids=lambda arguments: arguments[-1],
)
def test_promtool_reports_no_error(arguments: tuple[str, ...]) -> None:
    result = subprocess.run(
        ("promtool", *arguments), cwd=Path(DEPLOY), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
