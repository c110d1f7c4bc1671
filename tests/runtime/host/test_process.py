"""Tests of a process's ends: signals and a parent that goes away."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

PROGRAM = """
import asyncio
from runtime.host.process import run

async def main(stop: asyncio.Event) -> str:
    print("ready", flush=True)
    await stop.wait()
    return "stopped"

print(run(main, exit_with_parent=True), flush=True)
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that has reached its wait for `stop`."""
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_process_at_signal_stops_and_returns(
    child: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert child.stdout is not None

    child.send_signal(number)

    assert child.stdout.read() == "stopped\n"
    assert child.wait(10) == 0


def test_process_stops_when_its_parent_closes_stdin(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None

    child.stdin.close()

    assert child.stdout.read() == "stopped\n"
    assert child.wait(10) == 0
