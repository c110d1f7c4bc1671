"""Formats summaries as a table and as JSON values; prints nothing."""

from dataclasses import asdict, dataclass, field

from rich.table import Table

from scheduler import PolicySnapshot
from simulator.results.measures import Percentiles, Summary

JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | str | float | int | bool | None


@dataclass(slots=True)
class Comparison:
    """The results of each policy; `goodputs` has those that were searched.

    `seconds` is the wall time of a replay, not its simulated time.
    """

    summaries: dict[str, Summary] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    snapshots: dict[str, PolicySnapshot] = field(default_factory=dict)
    goodputs: dict[str, float] = field(default_factory=dict)


def policy_table(title: str, comparison: Comparison) -> Table:
    """Returns a table with one column per policy."""
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
    """Returns the results of every policy, in seconds and per second."""
    return {
        policy: {
            "summary": asdict(summary),
            "insight": asdict(comparison.snapshots[policy]),
            "goodput": comparison.goodputs.get(policy),
            "replay_seconds": comparison.seconds[policy],
        }
        for policy, summary in comparison.summaries.items()
    }
