"""The launcher with commands that exit by themselves; complete meshes are in tests/integration."""

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from runtime.backoff import Backoff
from runtime.errors import LaunchError
from stagemesh.launcher import launcher, worker_supervisor
from stagemesh.launcher.child_process import ChildProcess
from stagemesh.launcher.launcher import LaunchPlan, LocalMesh, local_mesh
from stagemesh.launcher.ports import reserve
from stagemesh.launcher.worker_supervisor import RestartPolicy, WorkerLaunchPlan

WORKER = ("worker", "--coordinator", "127.0.0.1:1")


def plan(coordinator: tuple[str, ...], worker: tuple[str, ...]) -> LaunchPlan:
    workers = WorkerLaunchPlan(arguments=worker, num_workers=1, first_address="127.0.0.1:50100")
    apis = ("127.0.0.1:50050", "127.0.0.1:8000")
    return LaunchPlan(coordinator, workers, *apis, mesh=reserve("127.0.0.1:0"))


@pytest.fixture(autouse=True)
def _no_child_left() -> Iterator[None]:
    """Checks that a test leaves no child process; shared meshes of other tests may keep running."""
    before = psutil.Process().children(recursive=True)
    yield
    assert set(psutil.Process().children(recursive=True)) <= set(before)


async def wait_forever(mesh: LocalMesh) -> None:
    await mesh.wait_until_ready(lambda state: None)


async def test_child_that_exits_reports_its_code_and_error() -> None:
    lines: list[str] = []
    child = await ChildProcess.start("c", ("coordinator", "no such model"), lines.append)
    assert await child.follow() == 1
    assert child.last_error is not None
    assert "no such model" in child.last_error
    assert lines == []


async def test_child_ignores_options_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAGEMESH_LAYERS", "nonsense")
    child = await ChildProcess.start("c", ("coordinator", "no such model"), print)
    assert await child.follow() == 1


async def test_coordinator_error_ends_the_launch_with_its_message() -> None:
    with pytest.raises(LaunchError, match=r"^coordinator: model 'no such model' not found"):
        async with local_mesh(plan(("coordinator", "no such model"), WORKER), print) as mesh:
            await wait_forever(mesh)


async def test_worker_that_keeps_failing_is_restarted_up_to_the_limit() -> None:
    lines: list[str] = []
    restarts = RestartPolicy(max_restarts=2, backoff=Backoff(0.01, 30.0))
    # A coordinator that waits for standard input, and a worker with an option that does not exist.
    launch_plan = plan(("worker", "--coordinator", "127.0.0.1:1"), ("worker", "--nonsense"))
    with pytest.raises(LaunchError, match=r"^worker 0 exited with code 2"):
        async with local_mesh(launch_plan, lines.append, restarts) as mesh:
            await wait_forever(mesh)
    assert sum("restarting it" in line for line in lines) == 2


async def test_worker_whose_port_is_in_use_is_restarted_with_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        addresses = iter([f"127.0.0.1:{listener.getsockname()[1]}", "127.0.0.1:0"])
        monkeypatch.setattr(worker_supervisor, "free_address", lambda first, taken: next(addresses))
        restarted = asyncio.Event()
        restarts = RestartPolicy(backoff=Backoff(0.01, 30.0))

        def on_line(line: str) -> None:
            if line.startswith("worker 0 found its address in use; restarting it"):
                restarted.set()

        async with local_mesh(plan(WORKER, WORKER), on_line, restarts):
            await restarted.wait()


async def test_local_mesh_block_that_raises_stops_the_children() -> None:
    with pytest.raises(ZeroDivisionError):
        async with local_mesh(plan(WORKER, WORKER), lambda line: None):
            raise ZeroDivisionError


async def test_local_mesh_block_that_is_cancelled_stops_the_children() -> None:
    started = asyncio.Event()

    async def run() -> None:
        async with local_mesh(plan(WORKER, WORKER), lambda line: None) as mesh:
            started.set()
            await wait_forever(mesh)

    task = asyncio.create_task(run())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@dataclass(eq=False)
class RunningWorker:
    """A worker's process that keeps running."""

    pid: int
    name: str = "worker 0"
    is_running: bool = True
    is_killed: bool = False

    def kill(self) -> None:
        """Records the signal."""
        self.is_killed = True


@pytest.mark.parametrize("listens", [True, False])
async def test_missing_worker_is_killed_unless_it_refuses_connections(
    listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drained worker whose GPU frees memory slowly no longer listens, and is not killed."""
    monkeypatch.setattr(launcher, "MISSING_SECONDS", 0.0)
    worker = RunningWorker(pid=2**22)
    states = iter([{worker.pid}, set(), set()])

    async def state() -> Any:
        workers = [SimpleNamespace(pid=pid) for pid in next(states)]
        return SimpleNamespace(failure="", workers=workers, ready=False)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        if not listens:
            listener.close()
        monkeypatch.setattr(worker_supervisor, "free_address", lambda first, taken: address)
        mesh = LocalMesh(plan(WORKER, WORKER), lambda line: None, RestartPolicy())
        mesh._supervisor._choose_address(worker.name, "127.0.0.1:50100")
        mesh.children[worker.name] = cast("ChildProcess", worker)
        monkeypatch.setattr(mesh._client, "state", state)
        for _ in range(3):
            await mesh._state()
        assert worker.is_killed is listens
        await mesh._client.close()
