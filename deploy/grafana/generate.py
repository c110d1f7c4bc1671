"""Writes the dashboards: `python -m deploy.grafana.generate`; --check compares them.

It refuses a panel that asks for a metric which `runtime/metrics/declarations.py` does not declare.
"""

import re
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from deploy.grafana.nodes import NODES
from deploy.grafana.overview import OVERVIEW
from deploy.grafana.panels import to_json
from deploy.grafana.pipeline import PIPELINE
from deploy.grafana.recovery import RECOVERY
from runtime.metrics.declarations import CoordinatorMetrics, WorkerMetrics

FOLDER = Path(__file__).parent / "dashboards"
DASHBOARDS = (OVERVIEW, PIPELINE, NODES, RECOVERY)


def expressions(*, with_gpus: bool = True) -> list[str]:
    """Every panel's queries; without GPUs, those that can give something."""
    return [
        expression
        for dashboard in DASHBOARDS
        for _, panels in dashboard.rows
        for panel in panels
        for expression, _ in panel.queries
        if with_gpus or not panel.only_on_gpus
    ]


def undeclared() -> set[str]:
    """Names of series that no process of ours has."""
    wanted = {name for query in expressions() for name in re.findall(r"stagemesh_\w+", query)}
    return wanted - _declared()


def _declared() -> set[str]:
    names: set[str] = set()
    for metrics in (CoordinatorMetrics(CollectorRegistry()), WorkerMetrics(CollectorRegistry())):
        for family in metrics.registry.collect():
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
            names |= {family.name + suffix for suffix in suffixes.get(family.type, ("",))}
    return names


def main() -> str | None:
    """What is wrong, if anything."""
    if missing := undeclared():
        return f"panels ask for metrics that are not declared: {', '.join(sorted(missing))}"
    wanted = {FOLDER / f"{each.uid}.json": to_json(each) for each in DASHBOARDS}
    if "--check" not in sys.argv[1:]:
        for path, text in wanted.items():
            path.write_text(text)
    elif any(not path.exists() or path.read_text() != text for path, text in wanted.items()):
        return "deploy/grafana/dashboards is not current: run python -m deploy.grafana.generate"
    return None


if __name__ == "__main__":
    sys.exit(main())
