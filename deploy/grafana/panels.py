"""What a dashboard is made of, and its form as Grafana reads it; knows none of the panels."""

import json
from dataclasses import dataclass
from typing import Any

RATE = "[$__rate_interval]"
_DATASOURCE = {"type": "prometheus", "uid": "stagemesh-prometheus"}
_WIDTH, _HEIGHT, _NUM_COLUMNS = 8, 8, 24


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph over time; `queries` are (expression, legend), `unit` is Grafana's name.

    On a mesh of CPUs a panel that is `only_on_gpus` stays empty.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    only_on_gpus: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Rows of panels, by the row's title."""

    uid: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def gauge(title: str, name: str, metric: str, legend: str) -> Panel:
    """A metric as it is; `name` is the unit's."""
    return Panel(title, name, ((f"stagemesh_{metric}", legend),))


def mean_rate(histogram: str, by: str) -> str:
    """The mean of what a histogram observed lately, for each value of a label."""
    name = f"stagemesh_{histogram}"
    return f"sum by ({by}) (rate({name}_sum{RATE})) / sum by ({by}) (rate({name}_count{RATE}))"


def quantiles(title: str, histogram: str) -> Panel:
    """The median and the tail of a histogram of seconds."""
    return Panel(
        title,
        "s",
        tuple(
            (
                f"histogram_quantile({q}, sum by (le) (rate(stagemesh_{histogram}_bucket{RATE})))",
                f"p{round(100 * q)}",
            )
            for q in (0.5, 0.95, 0.99)
        ),
    )


def per_second(title: str, counter: str, unit: str, by: str = "", legend: str = "") -> Panel:
    """A counter's rate, summed over all labels except `by`."""
    grouping = f" by ({by})" if by else ""
    expression = f"sum{grouping} (rate(stagemesh_{counter}_total{RATE}))"
    return Panel(title, unit, ((expression, legend or title),))


def within(title: str, histogram: str, targets: tuple[str, ...]) -> Panel:
    """Which part of a histogram is within each target, an edge of its buckets."""
    return Panel(
        title,
        "percentunit",
        tuple(
            (
                f'sum(rate(stagemesh_{histogram}_bucket{{le="{target}"}}{RATE}))'
                f" / sum(rate(stagemesh_{histogram}_count{RATE}))",
                f"within {target} s",
            )
            for target in targets
        ),
    )


def share_of_time(title: str, counter: str) -> Panel:
    """Seconds per second, by stage."""
    legend = "replica {{replica}} stage {{stage}}"
    return per_second(title, counter, "percentunit", "replica, stage", legend)


def to_json(dashboard: Dashboard) -> str:
    """A file for Grafana's provisioning."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, graphs in dashboard.rows:
        row = {"type": "row", "title": title, "gridPos": _place(0, top, _NUM_COLUMNS, 1)}
        panels.append(row | {"id": len(panels) + 1, "panels": []})
        top += 1
        for index, graph in enumerate(graphs):
            column, line = index % (_NUM_COLUMNS // _WIDTH), index // (_NUM_COLUMNS // _WIDTH)
            place = _place(column * _WIDTH, top + line * _HEIGHT, _WIDTH, _HEIGHT)
            panels.append(_graph(graph, len(panels) + 1, place))
        top += _HEIGHT * -(-len(graphs) * _WIDTH // _NUM_COLUMNS)
    document = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["stagemesh"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "panels": panels,
    }
    return json.dumps(document, indent=1) + "\n"


def _graph(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}
