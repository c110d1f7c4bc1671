"""Owns how a mesh's state looks on a terminal: tables and one-line summaries, made with rich.

It takes snapshots and prints nothing.
"""

from collections.abc import Iterable

from rich.table import Table

from stagemesh.generation import Timings, Usage
from stagemesh.state import MeshState, ReplicaState, StageState, WorkerState
from stagemesh.values import format_seconds, format_size


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
    """Which worker runs which layers."""
    workers = {worker.worker_id: worker for worker in state.workers}
    table = _table("Plan", "replica", "stage", "layers", "worker", "device", "pid", "weights")
    for replica in state.replicas:
        for stage in replica.stages:
            for worker_id in stage.worker_ids:
                worker = workers.get(worker_id)
                table.add_row(
                    str(replica.replica),
                    str(stage.stage),
                    layer_range(stage),
                    worker.address if worker else f"{worker_id} (gone)",
                    worker.device if worker else "",
                    str(worker.pid) if worker else "",
                    format_size(stage.weights_bytes),
                )
    return table


def stage_table(replicas: Iterable[ReplicaState], title: str = "Stages") -> Table:
    """Where the time of each stage's device went."""
    columns = ("replica", "stage", "layers", "steps", "compute", "idle", "busy", "peak memory")
    table = _table(title, *columns)
    for replica in replicas:
        for stage in replica.stages:
            table.add_row(
                str(replica.replica),
                str(stage.stage),
                layer_range(stage),
                str(stage.num_steps),
                format_seconds(stage.compute_seconds),
                format_seconds(stage.idle_seconds),
                _share(stage.compute_seconds, stage.compute_seconds + stage.idle_seconds),
                format_size(stage.peak_rss_bytes),
            )
    return table


def hop_table(replicas: Iterable[ReplicaState], title: str = "Hops") -> Table:
    """What went from each stage to the next, and how much of the time compute hid."""
    table = _table(title, "replica", "hop", "frames", "bytes", "time", "hidden behind compute")
    for replica in replicas:
        for stage in replica.stages[:-1]:
            table.add_row(
                str(replica.replica),
                f"{stage.stage} -> {stage.stage + 1}",
                f"{stage.num_frames_sent:,}",
                format_size(stage.num_bytes_sent),
                format_seconds(stage.send_seconds),
                _share(stage.send_hidden_seconds, stage.send_seconds),
            )
    return table


def load_table(replicas: Iterable[ReplicaState]) -> Table:
    """How much of each replica is in use."""
    columns = ("replica", "epoch", "sequences", "KV blocks", "steps in flight", "steps")
    table = _table("Load", *columns)
    for replica in replicas:
        table.add_row(
            str(replica.replica),
            str(replica.epoch),
            f"{replica.num_slots_used} of {replica.max_sequences}",
            f"{replica.num_kv_blocks_used:,} of {replica.num_kv_blocks:,} x {replica.block_size}",
            str(replica.num_steps_in_flight),
            f"{replica.num_steps:,}",
        )
    return table


def worker_table(workers: Iterable[WorkerState]) -> Table:
    """Who joined."""
    table = _table("Workers", "address", "node", "pid", "device", "memory", "state")
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


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column)
    return table


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "-"
