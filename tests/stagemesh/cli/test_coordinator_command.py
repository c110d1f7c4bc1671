"""The options that `stagemesh coordinator` passes to the coordinator."""

import sys
from typing import TYPE_CHECKING

import pytest

from coordinator import server
from stagemesh.cli import app

if TYPE_CHECKING:
    from coordinator.options import CoordinatorOptions


@pytest.mark.parametrize("has_launcher", [False, True])
def test_coordinator_settle_time_is_zero_under_a_launcher(
    has_launcher: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[CoordinatorOptions] = []
    command = sys.modules["stagemesh.cli.commands.coordinator"]
    monkeypatch.setattr(command, "check_options", lambda options, progress: None)
    monkeypatch.setattr(command, "configure_logging", lambda *_: None)
    monkeypatch.setattr(server, "run_coordinator", received.append)
    app(("coordinator", "m", *(["--exit-with-parent"] if has_launcher else [])))
    (options,) = received
    assert options.exit_with_parent == has_launcher
    assert (options.settle_seconds == 0.0) == has_launcher
