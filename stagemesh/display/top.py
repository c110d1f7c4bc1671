"""Renders the screen of `stagemesh top`: a mesh's load between two snapshots. Prints nothing.

`seconds` is the time between the two snapshots.
"""

from collections.abc import Iterator
from typing import Final

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stagemesh.client.stage_state import StageState
from stagemesh.client.state import MeshState, ReplicaState
from stagemesh.display.render import compact_table, layer_range, summary
from stagemesh.units import format_seconds, format_size

_BAR_WIDTH: Final = 20
_NUM_RECOVERIES: Final = 3


def screen(now: MeshState, before: MeshState | None) -> RenderableType:
    """The complete screen; rates cover the time since `before`, and are `-` without it."""
    seconds = now.uptime_seconds - before.uptime_seconds if before else 0.0
    if before is None or before.coordinator_id != now.coordinator_id or seconds <= 0:
        before, seconds = None, 0.0
    parts: list[RenderableType] = [Text(summary(now), style="bold")]
    if now.failure:
        parts.append(Text(f"failed: {now.failure}", style="red"))
    earlier = {replica.replica: replica for replica in before.replicas} if before else {}
    for replica in now.replicas:
        since = _since(replica, earlier.get(replica.replica))
        parts += [Text(), _load(replica, since, seconds), _stages(replica, since, seconds)]
    parts += _recoveries(now)
    return Group(*parts)


def _since(replica: ReplicaState, before: ReplicaState | None) -> ReplicaState | None:
    """The totals since `before`; None if the epoch changed and totals restarted."""
    if before is None or before.epoch != replica.epoch or len(before.stages) != len(replica.stages):
        return None
    return replica.since(before)


def _load(replica: ReplicaState, since: ReplicaState | None, seconds: float) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(
        Text(f"Replica {replica.replica}", style="bold"),
        f"epoch {replica.epoch}",
        f"tokens/s {_rate(since.num_generated_tokens, seconds) if since else '-'}",
        f"steps/s {_rate(since.num_steps, seconds) if since else '-'}",
        f"in flight {replica.num_steps_in_flight}",
        f"sequences {replica.num_slots_used}/{replica.max_sequences}",
        Text(f"KV {replica.num_kv_blocks_used:,}/{replica.num_kv_blocks:,}"),
        _bar(replica.num_kv_blocks_used, replica.num_kv_blocks, "magenta"),
    )
    return table


def _stages(replica: ReplicaState, since: ReplicaState | None, seconds: float) -> Table:
    table = compact_table(
        "", "stage", "layers", "busy", "", "bubble", "per step", "to the next stage"
    )
    for index, stage in enumerate(replica.stages):
        change = since.stages[index] if since else None
        is_last = index == len(replica.stages) - 1
        table.add_row(
            str(stage.stage),
            layer_range(stage),
            *_occupancy(change),
            "" if is_last else _hop(change, seconds),
        )
    return table


def _occupancy(stage: StageState | None) -> Iterator[RenderableType]:
    """Bar, busy fraction, idle fraction (the bubble) and mean time per step."""
    total = stage.compute_seconds + stage.idle_seconds if stage else 0.0
    if stage is None or total <= 0:
        # No step completed: the stage is idle, or computes a long step.
        yield from (_bar(0, 1, "green"), "-", "-", "-")
        return
    yield _bar(stage.compute_seconds, total, "green")
    yield f"{stage.compute_seconds / total:.0%}"
    yield f"{stage.idle_seconds / total:.0%}"
    yield format_seconds(stage.compute_seconds / max(1, stage.num_steps))


def _hop(stage: StageState | None, seconds: float) -> str:
    if stage is None or stage.num_steps == 0:
        return "-"
    per_step = format_seconds(stage.send_seconds / stage.num_steps)
    return f"{format_size(stage.num_bytes_sent / seconds)}/s, {per_step} per step"


def _recoveries(state: MeshState) -> Iterator[RenderableType]:
    for recovery in state.recoveries[:_NUM_RECOVERIES]:
        end = f"after {format_seconds(recovery.seconds)}" if recovery.seconds else "not yet"
        yield Text(
            f"replica {recovery.replica}, epoch {recovery.epoch} ended by {recovery.cause}, "
            f"served again {end}",
            style="yellow",
        )


def _bar(part: float, whole: float, color: str) -> Bar:
    size = max(whole, 1e-9)
    return Bar(size, 0, min(part, size), width=_BAR_WIDTH, color=color, bgcolor="grey23")


def _rate(count: float, seconds: float) -> str:
    return f"{count / seconds:.1f}"
