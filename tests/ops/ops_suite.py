"""What operators see, from a real Prometheus that reads a real mesh under load and after a death.

`make test-ops` runs it; its name keeps it out of other runs, because it needs Prometheus installed.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.grafana.generate import expressions
from stagemesh import GenerationRequest, TokenIds
from tests.integration.processes import Mesh, serving
from tests.integration.tiny_chat import MODEL_NAME, make_tiny_chat
from tests.ops.prometheus import DEPLOY, Prometheus, prometheus

pytestmark = pytest.mark.timeout(600)

REQUEST = GenerationRequest(
    prompts=(TokenIds(tuple(range(40, 60))), TokenIds((5, 6, 7))), max_tokens=40, ignore_eos=True
)
WAIT_SECONDS = 180.0


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    if missing:
        pytest.exit(
            f"not installed: {', '.join(missing)} (on Debian: apt-get install prometheus)", 1
        )


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two stages of a tiny model."""
    model = make_tiny_chat(tmp_path_factory.mktemp("models") / MODEL_NAME)
    with serving(str(model.model.folder), "--pp", "2", "--kv-memory", "64MiB") as one:
        yield one
        one.stop()


@pytest.fixture(scope="module")
def watcher(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus, which saw the mesh under load, a worker's death, and load again."""
    with prometheus(mesh.http, tmp_path_factory.mktemp("prometheus")) as server:
        until(server.is_up, mesh=None)
        until(lambda: len(server.numbers("up == 1")) == 3, mesh)
        _kill_a_worker(mesh)
        until(lambda: bool(server.numbers("stagemesh_epoch_ends_total > 0")), mesh)
        until(lambda: not [query for query in panel_queries() if not server.numbers(query)], mesh)
        yield server


def until(is_true: Callable[[], bool], mesh: Mesh | None) -> None:
    """Returns when it is true, or at the deadline; meanwhile the mesh has something to do."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_true() and time.monotonic() < deadline:
        if mesh is not None:
            mesh.ask(REQUEST)


def panel_queries() -> list[str]:
    """What the dashboards ask."""
    return [query.replace("$__rate_interval", "1m") for query in expressions(with_gpus=False)]


def _kill_a_worker(mesh: Mesh) -> None:
    workers = [child for child in mesh.command.descendants() if "worker" in child.cmdline()]
    workers[-1].kill()


def test_targets_are_the_coordinator_and_the_workers_that_it_names(
    watcher: Prometheus, mesh: Mesh
) -> None:
    until(lambda: sorted(watcher.numbers("count by (job) (up == 1)")) == [1.0, 2.0], mesh)
    targets = watcher.get("targets", state="active")["activeTargets"]
    jobs = sorted(target["labels"]["job"] for target in targets if target["health"] == "up")
    assert jobs == ["stagemesh-coordinator", "stagemesh-workers", "stagemesh-workers"]


def test_every_panel_has_data(watcher: Prometheus) -> None:
    assert [query for query in panel_queries() if not watcher.numbers(query)] == []


def test_every_alert_rule_is_evaluated_and_none_fires(watcher: Prometheus) -> None:
    (group,) = watcher.get("rules")["groups"]
    assert {rule["health"] for rule in group["rules"]} == {"ok"}
    assert [rule["name"] for rule in group["rules"] if rule["state"] == "firing"] == []


def test_metrics_obey_the_conventions(watcher: Prometheus, mesh: Mesh) -> None:
    """What the Gateway API's inference extension asks of a model server is there, as gauges."""
    metadata = watcher.get("metadata")
    for name in ("requests_waiting", "requests_running", "kv_cache_utilization_ratio"):
        assert metadata[f"stagemesh_{name}"][0]["type"] == "gauge"


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")],
    ids=lambda arguments: arguments[-1],
)
def test_promtool_finds_nothing_wrong(arguments: tuple[str, ...]) -> None:
    result = subprocess.run(
        ("promtool", *arguments), cwd=Path(DEPLOY), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
