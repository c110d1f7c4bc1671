"""How a fleet answers the ends of its workers; fleets of real workers are in tests/integration."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.backoff import Backoff
from runtime.errors import LaunchError
from runtime.rpc.tls import MeshTls, Role
from stagemesh.launcher.child_process import EXIT_REFUSED, ChildProcess
from stagemesh.launcher.ports import reserve
from stagemesh.launcher.worker_supervisor import FleetPlan, RestartPolicy, WorkerSupervisor

QUICK = RestartPolicy(max_restarts=2, backoff=Backoff(0.001, 0.004))


class EndingChild:
    """A process that is over as soon as it has begun, with the next of `codes`."""

    def __init__(self, name: str, codes: Iterator[int]) -> None:
        self.name = name
        self.last_error: str | None = None
        self._codes = codes

    async def follow(self) -> int:
        return next(self._codes)

    async def stop(self, grace_seconds: float) -> None:
        """It is over."""

    def kill(self) -> None:
        """It is over."""


async def news_of(
    monkeypatch: pytest.MonkeyPatch, *codes: int, restarts: RestartPolicy = QUICK
) -> list[str]:
    """What a fleet of one worker says that ends with these codes and is refused in the end."""
    left = iter((*codes, EXIT_REFUSED))

    async def start(name: str, *_: Any) -> EndingChild:
        return EndingChild(name, left)

    monkeypatch.setattr(ChildProcess, "start", start)
    news: list[str] = []
    plan = FleetPlan(arguments=(), num_workers=1, first_address="127.0.0.1:0")
    async with asyncio.timeout(20):
        with pytest.raises(LaunchError):
            await WorkerSupervisor(plan, news.append, restarts).run(grace_seconds=1.0)
    return news


def delays(news: list[str]) -> list[float]:
    return [float(line.split()[-2]) for line in news]


async def test_worker_that_ends_at_once_and_cleanly_waits_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = RestartPolicy(max_restarts=1, backoff=Backoff(0.1, 0.4))
    news = await news_of(monkeypatch, *[0] * 5, restarts=slow)
    assert all("was drained" in line for line in news)
    assert delays(news) == [0.1, 0.2, 0.4, 0.4, 0.4]


async def test_worker_that_ends_cleanly_is_never_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(await news_of(monkeypatch, *[0] * 40)) == 40


async def test_worker_that_dies_is_given_up_though_it_ended_cleanly_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(await news_of(monkeypatch, 2, 0, 2, 0, 2, 0)) == 4


async def test_worker_that_lived_long_and_was_drained_is_replaced_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient = RestartPolicy(healthy_seconds=-1.0)
    assert delays(await news_of(monkeypatch, 0, 0, 0, restarts=patient)) == [0.0, 0.0, 0.0]


async def test_worker_does_not_take_the_port_of_a_api_that_is_not_open_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[str] = []

    async def start(name: str, arguments: list[str], *_: Any) -> EndingChild:
        taken.append(arguments[arguments.index("--listen") + 1])
        return EndingChild(name, iter((EXIT_REFUSED,)))

    monkeypatch.setattr(ChildProcess, "start", start)
    first = reserve("127.0.0.1:0")
    plan = FleetPlan(arguments=(), num_workers=1, first_address=first, reserved=(first,))
    with pytest.raises(LaunchError):
        await WorkerSupervisor(plan, print, QUICK).run(grace_seconds=1.0)
    assert taken
    assert first not in taken


async def test_fleet_without_the_certificate_for_its_watch_is_over_before_it_starts_a_worker(
    tmp_path: Path,
) -> None:
    plan = FleetPlan(
        arguments=(),
        num_workers=2,
        first_address="127.0.0.1:0",
        tls=MeshTls(tmp_path, Role.WORKER),
        ends_frozen=True,
    )
    news: list[str] = []
    fleet = WorkerSupervisor(plan, news.append, QUICK)
    with pytest.raises(LaunchError, match=r"ca\.pem"):
        await fleet.run(grace_seconds=1.0)
    assert not fleet.children
    assert not news
