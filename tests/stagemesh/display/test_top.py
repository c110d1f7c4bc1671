"""What `stagemesh top` shows between two snapshots."""

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from protos import mesh_pb2
from stagemesh.client.state import MeshState, RecoveryState, state_from_proto
from stagemesh.display.top import screen
from tests.integration.processes import run_command

if TYPE_CHECKING:
    from stagemesh.client.stage_state import StageState


@pytest.fixture
def now(state_message: mesh_pb2.GetStateResponse) -> MeshState:
    return state_from_proto(state_message)


def text(now: MeshState, before: MeshState | None) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(screen(now, before))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def later(state: MeshState) -> MeshState:
    """Two seconds on: 10 tokens and 4 steps more, of which the first stage computed 1 second."""
    (replica,) = state.replicas
    first, last = replica.stages
    stages: tuple[StageState, ...] = (
        replace(
            first,
            num_steps=first.num_steps + 4,
            compute_seconds=first.compute_seconds + 1.0,
            idle_seconds=first.idle_seconds + 3.0,
            num_bytes_sent=first.num_bytes_sent + 2**20,
            send_seconds=first.send_seconds + 0.04,
        ),
        last,
    )
    changed = replace(
        replica,
        num_steps=replica.num_steps + 4,
        num_generated_tokens=replica.num_generated_tokens + 10,
        stages=stages,
    )
    return replace(state, uptime_seconds=state.uptime_seconds + 2.0, replicas=(changed,))


def test_top_shows_rates_of_the_time_between_two_snapshots(now: MeshState) -> None:
    shown = text(later(now), now)
    assert "tokens/s 5.0" in shown
    assert "steps/s 2.0" in shown
    # The first stage: busy 1 of 4 seconds, the rest is bubble.
    assert "25%" in shown
    assert "75%" in shown
    assert "512.0 KiB/s, 10.0 ms per step" in shown
    assert "KV 7/100" in shown


@pytest.mark.parametrize("other", ["nothing", "epoch", "coordinator"])
def test_top_without_a_comparable_snapshot_shows_no_rates(now: MeshState, other: str) -> None:
    (replica,) = now.replicas
    before = {
        "nothing": None,
        "epoch": replace(now, replicas=(replace(replica, epoch=3),)),
        "coordinator": replace(now, coordinator_id="another"),
    }[other]
    shown = text(later(now), before)
    assert "tokens/s -" in shown
    assert "25%" not in shown


def test_top_names_failures_and_recoveries(now: MeshState) -> None:
    recovery = RecoveryState(
        replica=0, epoch=3, cause="worker_died", detail="", ended_unix_seconds=1.0, seconds=2.5
    )
    shown = text(replace(now, failure="no memory", recoveries=(recovery,)), None)
    assert "failed: no memory" in shown
    assert "epoch 3 ended by worker_died, served again after 2.50 s" in shown


def test_top_without_a_terminal_points_to_status() -> None:
    result = run_command("top")
    assert result.returncode == 1
    assert "stagemesh status --json" in result.stderr
