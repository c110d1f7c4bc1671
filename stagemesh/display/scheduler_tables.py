"""Renders the state of a replica's scheduler as tables. Prints nothing."""

from collections.abc import Iterator
from dataclasses import asdict

from rich.table import Table

from stagemesh.client.scheduler_state import SchedulerState
from stagemesh.client.state import ReplicaState
from stagemesh.display.render import compact_table
from stagemesh.units import format_seconds

_MICRO = 1e6
"""Coefficients are displayed in microseconds."""


def scheduler_tables(replica: ReplicaState) -> Iterator[Table]:
    """The state of the policy, the stages' cost models, and the causes of idle time."""
    state = replica.scheduler
    yield _policy_table(replica)
    if state.stages:
        yield _cost_table(state)
    yield _bubble_table(state)


def _policy_table(replica: ReplicaState) -> Table:
    state = replica.scheduler
    decisions, ratios = state.decisions, asdict(state.ratios)
    trust = "fallback" if state.fallback else "warming up" if state.warmup else "trusted"
    in_flight = f"{replica.num_steps_in_flight} of {state.steps_in_flight_target}"
    rows = {
        "policy": state.policy or "none yet",
        "microbatches in flight": in_flight,
        "target per microbatch": f"{state.target_tokens} tokens, {_seconds(state.target_seconds)}",
        "planned and measured": f"{_seconds(state.planned_seconds)}, "
        f"{_seconds(state.actual_seconds)} on the slowest stage",
        "round trip besides compute": _seconds(state.overhead_seconds),
        "predictions": f"{trust}, off by {state.error:.0%}" if state.stages else "none",
        "decisions": f"{decisions.cycles} cycles, {decisions.more_in_flight} times more in flight, "
        f"{decisions.fewer_in_flight} times fewer, {decisions.fallbacks} fallbacks",
        "fraction of the optimum": ", ".join(
            f"{name} {ratio:.2f}" if ratio else f"{name} -" for name, ratio in ratios.items()
        ),
    }
    table = compact_table(f"Scheduler of replica {replica.replica}", "", "")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _cost_table(state: SchedulerState) -> Table:
    """One column per stage: a terminal has more lines than columns for the coefficients."""
    numbers = (f"stage {number}" for number in range(len(state.stages)))
    table = compact_table("Cost models (microseconds; error and safety are ratios)", "", *numbers)
    stages = [asdict(stage) for stage in state.stages]
    for name in stages[0]:
        table.add_row(name.removeprefix("num_"), *(_cost(name, stage[name]) for stage in stages))
    return table


def _cost(name: str, value: float) -> str:
    if name.startswith("num_"):
        return str(value)
    if name in ("error", "safety"):
        return f"{value:.2f}"
    return f"{float(f'{value * _MICRO:.4g}'):g}"


def _bubble_table(state: SchedulerState) -> Table:
    bubbles = asdict(state.bubbles)
    total = sum(bubbles.values())
    table = compact_table("Idle time of stages, by cause", "cause", "time", "share")
    for cause, seconds in bubbles.items():
        share = f"{seconds / total:.0%}" if total else "-"
        table.add_row(cause.replace("_", " "), format_seconds(seconds), share)
    return table


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "-"
