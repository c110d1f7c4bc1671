"""Owns how a mesh's state looks on a terminal: tables and one-line summaries, made with rich.

It takes snapshots and prints nothing.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

from runtime.protocol.inference_types import Timings, Usage
from stagemesh.client.stage_state import StageState
from stagemesh.client.state import MeshState, ReplicaState, WorkerState
from stagemesh.units import format_seconds, format_size

FILE_COLUMNS = 160
"""How wide tables are in a file or a pipe, where names are looked for and should be in a piece."""


def output_console() -> Console:
    """Standard output, as wide as its terminal or as COLUMNS says."""
    is_bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_bounded else FILE_COLUMNS)


def layer_range(stage: StageState) -> str:
    """The stage's layers, as `0-14`."""
    last = stage.first_layer + stage.num_layers - 1
    return f"{stage.first_layer}-{last}" if last > stage.first_layer else f"{stage.first_layer}"


def summary(state: MeshState) -> str:
    """The mesh in one line: model, readiness, load."""
    what = "ready" if state.ready else "not ready"
    phase = "" if state.phase in ("", what) else f" ({state.phase})"
    return (
        f"{state.model}: {what}{phase}, {state.num_running} running, {state.num_waiting} waiting, "
        f"up {format_seconds(state.uptime_seconds)}"
    )


def plan_table(state: MeshState) -> Table:
    """Which worker runs which layers; without rows while no worker was given a stage."""
    columns = ("replica", "stage", "layers", "worker", "device", "pid", "weights")
    return _replica_table("Plan", columns, _plan_rows(state))


def _plan_rows(state: MeshState) -> Iterator[Sequence[str]]:
    workers = {worker.worker_id: worker for worker in state.workers}
    for replica in state.replicas:
        for stage in replica.stages:
            for rank in stage.ranks:
                if not rank.worker_id:
                    continue
                worker = workers.get(rank.worker_id)
                yield (
                    str(replica.replica),
                    f"{stage.stage} rank {rank.rank}" if len(stage.ranks) > 1 else str(stage.stage),
                    layer_range(stage),
                    worker.address if worker else f"{rank.worker_id} (gone)",
                    worker.device if worker else "",
                    str(worker.pid) if worker else "",
                    format_size(rank.weights_bytes),
                )


def stage_table(replicas: Iterable[ReplicaState], title: str = "Stages") -> Table:
    """Where the time of each stage's device went."""
    columns = ("replica", "stage", "layers", "steps", "compute", "idle", "busy", "peak memory")
    rows = (
        (
            str(replica.replica),
            str(stage.stage),
            layer_range(stage),
            f"{stage.num_steps:,}",
            format_seconds(stage.compute_seconds),
            format_seconds(stage.idle_seconds),
            _share(stage.compute_seconds, stage.compute_seconds + stage.idle_seconds),
            format_size(stage.peak_rss_bytes),
        )
        for replica in replicas
        for stage in replica.stages
    )
    return _replica_table(title, columns, rows)


def rank_table(replicas: Iterable[ReplicaState], title: str = "Ranks") -> Table:
    """What each rank of a stage did by itself; the one that works longest keeps the others waiting.

    Without rows where no stage has several.
    """
    columns = ("replica", "stage", "rank", "steps", "working", "waiting for ranks", "sent")
    rows = (
        (
            str(replica.replica),
            str(stage.stage),
            str(rank.rank),
            f"{rank.num_steps:,}",
            format_seconds(rank.work_seconds),
            format_seconds(rank.wait_seconds),
            format_size(rank.num_bytes_sent),
        )
        for replica in replicas
        for stage in replica.stages
        for rank in stage.ranks
        if len(stage.ranks) > 1
    )
    return _replica_table(title, columns, rows)


def hop_table(replicas: Iterable[ReplicaState], title: str = "Hops") -> Table:
    """What went from each stage to the next, and how much of the time compute hid."""
    columns = ("replica", "hop", "frames", "bytes", "time", "hidden behind compute")
    rows = (
        (
            str(replica.replica),
            f"{stage.stage} -> {stage.stage + 1}",
            f"{stage.num_frames_sent:,}",
            format_size(stage.num_bytes_sent),
            format_seconds(stage.send_seconds),
            _share(stage.send_hidden_seconds, stage.send_seconds),
        )
        for replica in replicas
        for stage in replica.stages[:-1]
    )
    return _replica_table(title, columns, rows)


def load_table(replicas: Iterable[ReplicaState]) -> Table:
    """How much of each replica is in use."""
    columns = ("replica", "epoch", "sequences", "KV blocks", "steps in flight", "steps")
    rows = (
        (
            str(replica.replica),
            str(replica.epoch),
            f"{replica.num_slots_used} of {replica.max_sequences}",
            f"{replica.num_kv_blocks_used:,} of {replica.num_kv_blocks:,} x {replica.block_size}",
            str(replica.num_steps_in_flight),
            f"{replica.num_steps:,}",
        )
        for replica in replicas
    )
    return _replica_table("Load", columns, rows)


def worker_table(workers: Iterable[WorkerState]) -> Table:
    """Who joined."""
    table = compact_table("Workers", "address", "node", "pid", "device", "memory", "state")
    for worker in workers:
        table.add_row(
            worker.address,
            worker.node,
            str(worker.pid),
            worker.device,
            format_size(worker.memory_bytes),
            worker.state,
        )
    return table


def compact_table(title: str, *columns: str, justify: JustifyMethod = "left") -> Table:
    """A table that stays narrow, and folds what is too long for the terminal but cuts nothing."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        table.add_column(column, overflow="fold", justify=justify)
    return table


def speed(usage: Usage, timings: Timings) -> str:
    """Counts and speed of one answer; the rate is that of the tokens after the first."""
    text = (
        f"{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} generated, "
        f"first token after {format_seconds(timings.first_token_seconds)}"
    )
    decoding = timings.total_seconds - timings.first_token_seconds
    if usage.completion_tokens > 1 and decoding > 0:
        text += f", then {(usage.completion_tokens - 1) / decoding:.1f} tokens/s"
    return f"{text}, {format_seconds(timings.total_seconds)} in all"


def _replica_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column names the replica, which is left out where there is one only."""
    rows = list(rows)
    first = 0 if len({row[0] for row in rows}) > 1 else 1
    table = compact_table(title, *columns[first:])
    for row in rows:
        table.add_row(*row[first:])
    return table


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "-"
