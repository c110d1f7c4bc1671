"""Renders a mesh's state for terminals: rich tables and one-line summaries. Prints nothing."""

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
"""Width of tables in a file or a pipe, where names must not be wrapped."""


def output_console() -> Console:
    """Standard output, with the width of its terminal or of COLUMNS."""
    is_bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_bounded else FILE_COLUMNS)


def layer_range(stage: StageState) -> str:
    """The stage's layers, such as `0-14`."""
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
    """Which worker runs which layers; no rows before workers are assigned."""
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
                    worker.address if worker else f"{rank.worker_id} (left)",
                    worker.device if worker else "",
                    str(worker.pid) if worker else "",
                    format_size(rank.weights_bytes),
                )


def stage_table(replicas: Iterable[ReplicaState], title: str = "Stages") -> Table:
    """Compute and idle time of each stage's device."""
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
    """Work and wait time of each rank of stages with several ranks.

    The rank that works longest makes the others wait. No rows if every stage has one rank.
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
    """Transfers from each stage to the next, and the fraction of their time behind compute."""
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
    """Sequences, KV blocks and steps of each replica."""
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
    """The workers that joined."""
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
    """A narrow table, which wraps long cells without truncation."""
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
    """Token counts and speed of one answer; the rate excludes the first token."""
    text = (
        f"{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} generated, "
        f"first token after {format_seconds(timings.first_token_seconds)}"
    )
    decoding = timings.total_seconds - timings.first_token_seconds
    if usage.completion_tokens > 1 and decoding > 0:
        text += f", then {(usage.completion_tokens - 1) / decoding:.1f} tokens/s"
    return f"{text}, {format_seconds(timings.total_seconds)} in total"


def _replica_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column, the replica, is omitted if there is only one."""
    rows = list(rows)
    first = 0 if len({row[0] for row in rows}) > 1 else 1
    table = compact_table(title, *columns[first:])
    for row in rows:
        table.add_row(*row[first:])
    return table


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "-"
