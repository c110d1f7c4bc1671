"""A device that is stuck in a collective: its process exits, so that it can be restarted."""

import asyncio
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from runtime.errors import DeviceStuckError, StagemeshError, find_error
from runtime.protocol.step import Step
from stage_worker import worker as worker_module
from stage_worker.collectives.group import SingleRankGroup
from stage_worker.epoch import epoch_plan
from stage_worker.server import EXIT_STUCK
from tests.stage_worker.live_workers import (
    coordinator_frame,
    live_workers,
    load_ranks,
    open_epoch_on_ranks,
    prefill,
)
from tests.tiny_models import make_tiny_llama

WAIT_SECONDS = 20.0


class _DeafGroup(SingleRankGroup):
    """A group that never agrees and ignores aborts."""

    size = 2

    def __init__(self) -> None:
        self.is_waiting = threading.Event()
        self.is_released = threading.Event()

    def agree(self, step: Step, refusal: StagemeshError | None) -> None:
        self.is_waiting.set()
        self.is_released.wait(WAIT_SECONDS)


async def test_device_stuck_in_a_collective_after_the_epoch_ends_the_worker(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_llama(tmp_path_factory.mktemp("model"), "tied_gqa").folder
    group = _DeafGroup()
    monkeypatch.setattr(epoch_plan, "open_group", lambda _: group)
    monkeypatch.setattr(worker_module, "_STUCK_SECONDS", 0.1)
    try:
        with pytest.raises(ExceptionGroup) as caught:
            await _leave_in_a_collective(group, folder)
    finally:
        group.is_released.set()
    error = find_error(caught.value)
    assert isinstance(error, DeviceStuckError)
    assert "0.2 s after the epoch's end" in str(error)


async def _leave_in_a_collective(group: _DeafGroup, folder: Path) -> None:
    """Ends an epoch while the device waits in `group`; the error cancels this call."""
    async with live_workers(2) as workers:
        await load_ranks([workers], folder, (4,))
        epoch = await open_epoch_on_ranks([workers], collective_timeout_seconds=0.1)
        stream = workers[0].forward()
        await stream.write(coordinator_frame(epoch, prefill()))
        await asyncio.to_thread(group.is_waiting.wait, WAIT_SECONDS)
        stream.cancel()
        await asyncio.sleep(WAIT_SECONDS)


def test_run_worker_stuck_device_exits_while_its_thread_runs() -> None:
    script = textwrap.dedent("""
        import asyncio, threading
        from concurrent.futures import ThreadPoolExecutor
        from runtime.errors import DeviceStuckError
        from stage_worker import server

        async def stuck(options, stop):
            ThreadPoolExecutor(1).submit(threading.Event().wait)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fail())

        async def fail():
            raise DeviceStuckError(seconds=7)

        server.serve_worker = stuck
        server.run_worker(server.WorkerOptions(coordinator="127.0.0.1:1"))
    """)
    done = subprocess.run(
        (sys.executable, "-c", script),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == EXIT_STUCK
    assert "is still busy 7 s after the epoch's end" in done.stdout + done.stderr
