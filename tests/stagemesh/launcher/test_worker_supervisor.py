"""Restarts of workers that exit; tests with real workers are in tests/integration."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.backoff import Backoff
from runtime.errors import LaunchError
from runtime.rpc.tls import MeshTls, Role
from stagemesh.launcher.child_process import EXIT_FAILED, ChildProcess
from stagemesh.launcher.ports import reserve
from stagemesh.launcher.worker_supervisor import RestartPolicy, WorkerLaunchPlan, WorkerSupervisor

QUICK = RestartPolicy(max_restarts=2, backoff=Backoff(0.001, 0.004))


class EndingChild:
    """A process that exits at once, with the next of `codes`."""

    def __init__(self, name: str, codes: Iterator[int]) -> None:
        self.name = name
        self.last_error: str | None = None
        self._codes = codes

    async def follow(self) -> int:
        return next(self._codes)

    async def stop(self, grace_seconds: float) -> None:
        """It has exited."""

    def kill(self) -> None:
        """It has exited."""


async def log_lines(
    monkeypatch: pytest.MonkeyPatch, *codes: int, restarts: RestartPolicy = QUICK
) -> list[str]:
    """The log lines about one worker that exits with `codes`, then with a reported error."""
    left = iter((*codes, EXIT_FAILED))

    async def start(name: str, *_: Any) -> EndingChild:
        return EndingChild(name, left)

    monkeypatch.setattr(ChildProcess, "start", start)
    lines: list[str] = []
    plan = WorkerLaunchPlan(arguments=(), num_workers=1, first_address="127.0.0.1:0")
    async with asyncio.timeout(20):
        with pytest.raises(LaunchError):
            await WorkerSupervisor(plan, lines.append, restarts).run(grace_seconds=1.0)
    return lines


def delays(lines: list[str]) -> list[float]:
    return [float(line.split()[-2]) for line in lines]


async def test_worker_with_early_clean_exits_is_restarted_after_increasing_delays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = RestartPolicy(max_restarts=1, backoff=Backoff(0.1, 0.4))
    lines = await log_lines(monkeypatch, *[0] * 5, restarts=slow)
    assert all("was drained" in line for line in lines)
    assert delays(lines) == [0.1, 0.2, 0.4, 0.4, 0.4]


async def test_worker_with_clean_exits_is_always_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(await log_lines(monkeypatch, *[0] * 40)) == 40


async def test_worker_with_failures_between_clean_exits_exceeds_the_restart_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(await log_lines(monkeypatch, 2, 0, 2, 0, 2, 0)) == 4


async def test_worker_drained_after_a_healthy_time_is_restarted_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    always_healthy = RestartPolicy(healthy_seconds=-1.0)
    assert delays(await log_lines(monkeypatch, 0, 0, 0, restarts=always_healthy)) == [0.0, 0.0, 0.0]


async def test_worker_address_skips_reserved_ports_of_apis_that_do_not_listen_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[str] = []

    async def start(name: str, arguments: list[str], *_: Any) -> EndingChild:
        taken.append(arguments[arguments.index("--listen") + 1])
        return EndingChild(name, iter((EXIT_FAILED,)))

    monkeypatch.setattr(ChildProcess, "start", start)
    first = reserve("127.0.0.1:0")
    plan = WorkerLaunchPlan(arguments=(), num_workers=1, first_address=first, reserved=(first,))
    with pytest.raises(LaunchError):
        await WorkerSupervisor(plan, print, QUICK).run(grace_seconds=1.0)
    assert taken
    assert first not in taken


async def test_supervisor_without_a_certificate_for_health_checks_starts_no_worker(
    tmp_path: Path,
) -> None:
    plan = WorkerLaunchPlan(
        arguments=(),
        num_workers=2,
        first_address="127.0.0.1:0",
        tls=MeshTls(tmp_path, Role.WORKER),
        kills_unresponsive=True,
    )
    lines: list[str] = []
    supervisor = WorkerSupervisor(plan, lines.append, QUICK)
    with pytest.raises(LaunchError, match=r"ca\.pem"):
        await supervisor.run(grace_seconds=1.0)
    assert not supervisor.children
    assert not lines
