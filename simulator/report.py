"""Turns summaries into a table for people and plain values for JSON; it prints nothing."""

from dataclasses import asdict, dataclass, field

from rich.table import Table

from scheduler import SchedulerInsight
from simulator.measures import Summary

JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | str | float | int | bool | None


@dataclass(slots=True)
class Comparison:
    """What each policy did; goodputs only where they were searched."""

    summaries: dict[str, Summary] = field(default_factory=dict)
    insights: dict[str, SchedulerInsight] = field(default_factory=dict)
    goodputs: dict[str, float] = field(default_factory=dict)


def policy_table(title: str, comparison: Comparison) -> Table:
    """One row per policy."""
    goodputs = comparison.goodputs
    table = Table(title=title)
    table.add_column("policy", min_width=len("multiplicative"))
    headings: tuple[str, ...] = (
        "requests/s",
        "tokens/s",
        "good %",
        "TTFT p50/p90/p99 s",
        "TPOT p50/p90/p99 ms",
    )
    headings += (
        "bubble %",
        "preempted",
        "hits %",
        "of limit: throughput / occupancy / TPOT / TTFT",
    )
    for heading in (*(("goodput/s",) if goodputs else ()), *headings):
        table.add_column(heading, justify="right")
    for policy, summary in comparison.summaries.items():
        cells = [f"{goodputs[policy]:.2f}"] if goodputs else []
        ttft, tpot, ratios = summary.ttft, summary.tpot, summary.ratios
        cells += [
            f"{summary.request_rate:.2f}",
            f"{summary.token_rate:.0f}",
            f"{100 * summary.good_share:.1f}",
            f"{ttft.p50:.2f} / {ttft.p90:.2f} / {ttft.p99:.2f}",
            f"{1000 * tpot.p50:.0f} / {1000 * tpot.p90:.0f} / {1000 * tpot.p99:.0f}",
            f"{100 * summary.bubble_share:.1f}",
            str(summary.num_preemptions),
            f"{100 * summary.prefix_hit_share:.1f}",
            f"{ratios.throughput:.2f} / {ratios.occupancy:.2f}"
            f" / {ratios.tpot:.2f} / {ratios.ttft:.2f}",
        ]
        table.add_row(policy, *cells)
    return table


def as_json(comparison: Comparison) -> JsonValue:
    """Everything of every policy, in seconds and per second."""
    return {
        policy: {
            "summary": asdict(summary),
            "insight": asdict(comparison.insights[policy]),
            "goodput": comparison.goodputs.get(policy),
        }
        for policy, summary in comparison.summaries.items()
    }
