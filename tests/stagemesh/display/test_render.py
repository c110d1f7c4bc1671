"""Tables and summaries of a mesh's state."""

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from protos import mesh_pb2
from runtime.protocol.inference_types import Timings, Usage
from stagemesh.client.state import MeshState, state_from_proto
from stagemesh.display.progress import ProgressView
from stagemesh.display.render import (
    hop_table,
    load_table,
    output_console,
    plan_table,
    rank_table,
    speed,
    stage_table,
    summary,
    worker_table,
)


@pytest.fixture
def state(state_message: mesh_pb2.GetStateResponse) -> MeshState:
    return state_from_proto(state_message)


@pytest.fixture
def console() -> Console:
    """A console that is not a terminal, and records its output."""
    return Console(file=StringIO(), width=120)


def rows(table: Table) -> Iterator[list[str]]:
    """The cells of each row."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return (list(cells) for cells in zip(*columns, strict=True))


def printed(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_plan_table_names_layers_and_workers(state: MeshState) -> None:
    assert list(rows(plan_table(state))) == [
        ["0", "0-19", "127.0.0.1:50100", "cpu", "100", "1.0 GiB"],
        ["1", "20-29", "127.0.0.1:50101", "cpu", "101", "0 B"],
    ]


def test_plan_table_of_a_stage_with_ranks_has_a_row_for_each(state: MeshState) -> None:
    (replica,) = state.replicas
    first, last = replica.stages
    ranks = (first.ranks[0], replace(last.ranks[0], rank=1, weights_bytes=2**20))
    wide = replace(replica, stages=(replace(first, ranks=ranks),))
    assert [row[0::5] for row in rows(plan_table(replace(state, replicas=(wide,))))] == [
        ["0 rank 0", "1.0 GiB"],
        ["0 rank 1", "1.0 MiB"],
    ]


def test_plan_table_marks_a_worker_that_left(state: MeshState) -> None:
    alone = replace(state, workers=state.workers[:1])
    assert list(rows(plan_table(alone)))[1][2] == "w1 (left)"


def test_stage_table_gives_the_busy_share(state: MeshState) -> None:
    first, second = rows(stage_table(state.replicas))
    assert first == ["0", "0-19", "11", "3.00 s", "1.00 s", "75%", "2.0 GiB"]
    assert second[5] == "-"


def test_rank_table_has_rows_for_stages_with_several_ranks_only(state: MeshState) -> None:
    assert not rank_table(state.replicas).row_count
    replica = state.replicas[0]
    rank = replace(
        replica.stages[0].ranks[0],
        num_steps=11,
        compute_seconds=3.0,
        wait_seconds=1.0,
        num_bytes_sent=2**20,
    )
    first = replace(replica.stages[0], ranks=(rank, replace(rank, rank=1, wait_seconds=0.0)))
    wide = replace(replica, stages=(first, replica.stages[1]))
    assert list(rows(rank_table((wide,)))) == [
        ["0", "0", "11", "2.00 s", "1.00 s", "1.0 MiB"],
        ["0", "1", "11", "3.00 s", "0 µs", "1.0 MiB"],
    ]


def test_tables_of_several_replicas_name_the_replica(state: MeshState) -> None:
    replicas = (state.replicas[0], replace(state.replicas[0], replica=1))
    assert [row[:2] for row in rows(stage_table(replicas))] == [
        ["0", "0"],
        ["0", "1"],
        ["1", "0"],
        ["1", "1"],
    ]


def test_tables_in_60_columns_keep_each_row_on_one_line(state: MeshState) -> None:
    narrow = Console(file=StringIO(), width=60)
    tables = (plan_table(state), stage_table(state.replicas), hop_table(state.replicas))
    for table in (*tables, load_table(state.replicas), worker_table(state.workers)):
        narrow.print(table)
    # Title, heading, rule and rows of each.
    assert len(printed(narrow).splitlines()) == 5 * 3 + 2 + 2 + 1 + 1 + 2


def test_table_wider_than_the_terminal_is_wrapped_not_truncated(state: MeshState) -> None:
    narrow = Console(file=StringIO(), width=30)
    narrow.print(plan_table(state))
    assert "…" not in printed(narrow)


def test_table_in_a_file_does_not_wrap_names(
    state: MeshState, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "a-host-with-a-long-name.and-a-long-domain.example.org:50052"
    workers = [replace(worker, address=address) for worker in state.workers]
    monkeypatch.delenv("COLUMNS", raising=False)
    output_console().print(worker_table(workers))
    assert address in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    output_console().print(worker_table(workers))
    assert address not in capsys.readouterr().out


def test_hop_table_has_a_row_between_stages_only(state: MeshState) -> None:
    assert list(rows(hop_table(state.replicas))) == [["0 -> 1", "12", "3.0 MiB", "500.0 ms", "80%"]]


def test_load_table_counts_used_slots_and_blocks(state: MeshState) -> None:
    assert list(rows(load_table(state.replicas))) == [["4", "2 of 64", "7 of 100 x 16", "2", "11"]]


def test_worker_table_lists_joined_workers(state: MeshState) -> None:
    assert [row[0] for row in rows(worker_table(state.workers))] == [
        "127.0.0.1:50100",
        "127.0.0.1:50101",
    ]


def test_summary_of_a_mesh_that_is_not_ready_contains_its_phase(state: MeshState) -> None:
    assert summary(state).startswith("tiny: ready (serving), 2 running, 1 waiting")
    waiting = replace(state, ready=False, phase="waiting for workers")
    assert summary(waiting).startswith("tiny: not ready (waiting for workers)")


@pytest.mark.parametrize(
    ("usage", "timings", "text"),
    [
        (Usage(5, 11), Timings(0.1, 1.0, 2.0), "then 10.0 tokens/s, 2.00 s in total"),
        (Usage(5, 1), Timings(0.1, 1.0, 1.0), "first token after 1.00 s, 1.00 s in total"),
        (Usage(5, 0), Timings(0.0, 0.0, 0.0), "5 prompt tokens, 0 generated"),
    ],
)
def test_speed_of_an_answer_counts_tokens_after_the_first(
    usage: Usage, timings: Timings, text: str
) -> None:
    assert text in speed(usage, timings)


def test_progress_without_a_terminal_prints_each_phase_once(
    state: MeshState, console: Console
) -> None:
    with ProgressView(console) as progress:
        progress.show_preparation("converting", 0, 10)
        progress.show_preparation("converting", 10, 10)
        progress.show_state(replace(state, phase="loading weights"))
        progress.show_state(replace(state, phase="loading weights"))
        progress.show_state(state)
    assert printed(console).split("\n") == ["converting", "loading weights", "serving", ""]
