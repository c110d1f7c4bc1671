"""What the benchmark of running meshes makes of its measurements; no mesh runs."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.table import Table

from benchmarks.live import (
    SLOWED_STAGE,
    add_difference,
    add_figures,
    figures_table,
    with_slow_stage,
)
from benchmarks.live_load import LoadFigures
from benchmarks.live_options import PACED, parse_policies
from scheduler import POLICY_NAMES
from simulator.model.pacing import read_pace
from simulator.results.measures import Percentiles

FIGURES = LoadFigures(
    token_rate=200.0,
    ttft=Percentiles.of([0.5, 0.5]),
    tpot=Percentiles.of([0.04, 0.04]),
    bubble=0.25,
)


def cells_of(table: Table) -> list[list[str]]:
    """The table's rows as text."""
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]


def test_policies_by_name_keep_the_order_of_the_tables() -> None:
    assert parse_policies("adaptive,fixed") == ("fixed", "adaptive")
    assert parse_policies("all") == POLICY_NAMES


@pytest.mark.parametrize("names", ["", "adaptive,slow", "fixed,"])
def test_unknown_policies_are_refused_with_the_known_ones(names: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="fixed, multiplicative"):
        parse_policies(names)


def test_figures_row_has_its_units() -> None:
    table = figures_table("some")
    add_figures(table, "adaptive", FIGURES)
    assert cells_of(table) == [["adaptive", "200.0", "0.50", "0.50", "40", "40", "25%"]]


def test_difference_row_shows_the_simulators_deviation() -> None:
    table = figures_table("some")
    modelled = replace(FIGURES, token_rate=220.0, tpot=Percentiles.of([0.03, 0.03]))
    add_difference(table, modelled, FIGURES)
    assert cells_of(table) == [["  off by", "+10.0%", "+0.0%", "+0.0%", "-25.0%", "-25.0%", ""]]


def test_slowed_model_changes_one_stage_only(tmp_path: Path) -> None:
    paced = PACED / "llama2-70b.json"
    slowed = with_slow_stage(paced, tmp_path, 12.5)
    assert json.loads(slowed.read_text()) == json.loads(paced.read_text()) | {
        "changes": [{"stage": SLOWED_STAGE, "after_seconds": 12.5, "factor": 2.0}]
    }
    (change,) = read_pace(slowed).changes
    assert (change.stage, change.at_seconds, change.factor) == (SLOWED_STAGE, 12.5, 2.0)
