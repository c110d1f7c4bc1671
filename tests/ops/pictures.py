"""Draws a dashboard row from Prometheus' data: one picture with three graphs per row."""

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, PercentFormatter

from deploy.grafana.panels import RATE, Dashboard, Panel
from tests.ops.prometheus import Prometheus

_NUM_COLUMNS = 3
_WIDTH_INCHES, _HEIGHT_INCHES, _DPI = 3.6, 2.1, 72
_MAX_LEGENDS = 6
# Covers several scrapes of the suite's Prometheus, in a picture of a few minutes.
_RATE_WINDOW = "[15s]"
_FORMATS = {
    "percentunit": PercentFormatter(1.0, decimals=0),
    "s": EngFormatter("s"),
    "bytes": EngFormatter("B"),
    "Bps": EngFormatter("B/s"),
}


def draw(server: Prometheus, dashboard: Dashboard, folder: Path, start: float, end: float) -> None:
    """Writes a PNG for each row, named after dashboard and row; times are Unix seconds."""
    for title, panels in dashboard.rows:
        shown = [panel for panel in panels if not panel.only_on_gpus]
        num_lines = math.ceil(len(shown) / _NUM_COLUMNS)
        size = (_NUM_COLUMNS * _WIDTH_INCHES, num_lines * _HEIGHT_INCHES)
        with mpl.rc_context({"font.size": 7, "axes.titlesize": 8}):
            figure = Figure(size, layout="constrained")
            for index, panel in enumerate(shown):
                axes = figure.add_subplot(num_lines, _NUM_COLUMNS, index + 1)
                _draw_panel(axes, panel, server, start, end)
            name = f"{dashboard.uid.removeprefix('stagemesh-')}-{title.lower().replace(' ', '-')}"
            figure.savefig(folder / f"{name}.png", dpi=_DPI, pil_kwargs={"optimize": True})


def _draw_panel(axes: Axes, panel: Panel, server: Prometheus, start: float, end: float) -> None:
    for expression, legend in panel.queries:
        query = expression.replace(RATE, _RATE_WINDOW)
        for series in server.series(query, start, end):
            points = [(float(time) - start, float(value)) for time, value in series["values"]]
            axes.plot(*zip(*points, strict=True), label=_label(legend, series["metric"]), lw=1)
    axes.set_title(panel.title)
    axes.set_xlim(0, end - start)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:.0f} s"))
    axes.yaxis.set_major_formatter(_FORMATS.get(panel.unit, EngFormatter()))
    axes.grid(visible=True, alpha=0.3)
    axes.legend(*_first(axes), fontsize=5.5, loc="upper left", framealpha=0.6)


def _first(axes: Axes) -> tuple[list[Any], list[Any]]:
    """The legend's handles and labels, limited to what fits."""
    handles, labels = axes.get_legend_handles_labels()
    return handles[:_MAX_LEGENDS], labels[:_MAX_LEGENDS]


def _label(legend: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        legend = legend.replace(f"{{{{{name}}}}}", value)
    return legend
