"""Turns summaries into a table for people and plain values for JSON; it prints nothing."""

from dataclasses import asdict, dataclass, field

from rich.table import Table

from scheduler import SchedulerInsight
from simulator.results.measures import Percentiles, Summary

JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | str | float | int | bool | None


@dataclass(slots=True)
class Comparison:
    """What each policy did; goodputs only where they were searched.

    `seconds` are those that a replay took here, not those that went by in it.
    """

    summaries: dict[str, Summary] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    insights: dict[str, SchedulerInsight] = field(default_factory=dict)
    goodputs: dict[str, float] = field(default_factory=dict)


def policy_table(title: str, comparison: Comparison) -> Table:
    """One column per policy, so that it fits a terminal."""
    table = Table(title=title)
    table.add_column("")
    columns = []
    for policy, summary in comparison.summaries.items():
        table.add_column(policy, justify="right", no_wrap=True)
        cells = _cells(summary)
        if policy in comparison.goodputs:
            cells["goodput /s"] = f"{comparison.goodputs[policy]:.2f}"
        columns.append(cells | {"replayed in s": f"{comparison.seconds[policy]:.1f}"})
    for name in columns[0]:
        table.add_row(name, *(cells[name] for cells in columns))
    return table


def _cells(summary: Summary) -> dict[str, str]:
    ratios = summary.ratios
    return {
        "requests/s": f"{summary.request_rate:.2f}",
        "tokens/s": f"{summary.token_rate:.0f}",
        "good %": f"{100 * summary.good_share:.1f}",
        **_percentile_cells("TTFT {} s", summary.ttft, 1.0, 2),
        **_percentile_cells("TPOT {} ms", summary.tpot, 1000.0, 0),
        "bubble %": f"{100 * summary.bubble_share:.1f}",
        "preempted": str(summary.num_preemptions),
        "hits %": f"{100 * summary.prefix_hit_share:.1f}",
        "of limit: throughput": f"{ratios.throughput:.2f}",
        "  occupancy": f"{ratios.occupancy:.2f}",
        "  TPOT": f"{ratios.tpot:.2f}",
        "  TTFT": f"{ratios.ttft:.2f}",
    }


def _percentile_cells(name: str, values: Percentiles, factor: float, digits: int) -> dict[str, str]:
    shares = {"p50": values.p50, "p90": values.p90, "p99": values.p99}
    return {name.format(share): f"{factor * value:.{digits}f}" for share, value in shares.items()}


def as_json(comparison: Comparison) -> JsonValue:
    """Everything of every policy, in seconds and per second."""
    return {
        policy: {
            "summary": asdict(summary),
            "insight": asdict(comparison.insights[policy]),
            "goodput": comparison.goodputs.get(policy),
            "replay_seconds": comparison.seconds[policy],
        }
        for policy, summary in comparison.summaries.items()
    }
