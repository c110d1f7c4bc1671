"""Runs one `stagemesh` command as a child process: starts it, forwards its log, stops it.

A child has its own session, so that Ctrl-C in a terminal reaches only the launcher. Its standard
input is a pipe from the launcher, so that it ends when the launcher ends for any reason.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Self

# Starts the line with which a command reports an error; the launcher repeats the rest of it.
ERROR_PREFIX = "error: "
# The exit code after a reported error: a restart would fail in the same way.
EXIT_FAILED = 1
# The exit code when an address is in use: a restart with another address may succeed.
EXIT_ADDRESS_TAKEN = 3
_MAX_LINE_BYTES = 1 << 20
# Environment variables of options; STAGEMESH_CACHE is not an option of any command.
_OPTION_PREFIX = "STAGEMESH_"
_CACHE_VARIABLE = "STAGEMESH_CACHE"

LineFn = Callable[[str], None]
"""Receives one line: of a child's log, which names its process, or from the launcher itself."""


class ChildProcess:
    """A running `stagemesh` command; `last_error` is the last error that it printed."""

    def __init__(self, name: str, process: Process, on_line: LineFn) -> None:
        self.name = name
        self.last_error: str | None = None
        self._process = process
        self._on_line = on_line

    @classmethod
    async def start(
        cls,
        name: str,
        arguments: Sequence[str],
        on_line: LineFn,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Starts `stagemesh ARGUMENTS --exit-with-parent` with this Python interpreter.

        `environment` overrides variables of this process's environment.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stagemesh", *arguments, "--exit-with-parent"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            limit=_MAX_LINE_BYTES,
            start_new_session=True,
            env=_environment() | dict(environment),
        )
        return cls(name, process, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether `follow` has not yet seen the process exit."""
        return self._process.returncode is None

    async def follow(self) -> int:
        """Forwards log lines until the child exits; returns its exit code (-N for signal N)."""
        stream = self._process.stdout
        assert stream is not None
        while line := await _read_line(stream):
            text = line.decode(errors="replace").rstrip()
            if text.startswith(ERROR_PREFIX):
                self.last_error = text.removeprefix(ERROR_PREFIX)
            elif text:
                self._on_line(text)
        return await self._process.wait()

    async def stop(self, grace_seconds: float) -> None:
        """Sends SIGTERM, waits up to `grace_seconds`, and then kills the child."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_seconds):
                await self.follow()
        except TimeoutError:
            self._on_line(f"{self.name} did not stop within {grace_seconds:.0f} s: killed")
        finally:
            self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """Sends SIGKILL, unless the child has exited."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)


def _environment() -> dict[str, str]:
    """This process's environment without options: a child takes them from its command line."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == _CACHE_VARIABLE or not name.startswith(_OPTION_PREFIX)
    }
    return kept | {"PYTHONUNBUFFERED": "1"}


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """One line, or b"" at the end of the stream; lines above the size limit are dropped."""
    while True:
        try:
            return await stream.readline()
        except ValueError:
            continue
