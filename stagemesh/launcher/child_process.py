"""Owns one child process of the launcher: its start, its log lines, its end.

A child leads a session of its own, so that a terminal's Ctrl-C reaches the launcher alone, and
reads a pipe that the launcher holds open, so that it ends when the launcher is gone, however that
died.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Self

# What a command of ours prints before it exits on purpose; the launcher repeats it as the reason.
ERROR_PREFIX = "error: "
# The exit code of a command that said why it cannot go on: starting it again would not help.
EXIT_REFUSED = 1
# The exit code of a command whose address is taken: another address would help.
EXIT_ADDRESS_TAKEN = 3
_MAX_LINE_BYTES = 1 << 20
# Variables that stand for options, but for the one that is no option of any command.
_OPTION_PREFIX = "STAGEMESH_"
_CACHE_VARIABLE = "STAGEMESH_CACHE"

LineFn = Callable[[str], None]
"""Called with one line: a child's log (which names its process) or the launcher's own news."""


class ChildProcess:
    """A running `stagemesh` command; `last_error` is the reason that it gave for its exit."""

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
        """Starts `stagemesh ARGUMENTS --exit-with-parent` with this interpreter.

        `environment` is laid over this process's own.
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
        """The operating system's id of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Its end has not been noticed."""
        return self._process.returncode is None

    async def follow(self) -> int:
        """Passes log lines on until the child ends; its exit code, negative for a signal."""
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
        """Asks the child to end, waits for it, and kills it when `grace_seconds` are over."""
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
        """Ends the child at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)


def _environment() -> dict[str, str]:
    """Ours without the options in it: what a child is to do stands on its command line alone."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == _CACHE_VARIABLE or not name.startswith(_OPTION_PREFIX)
    }
    return kept | {"PYTHONUNBUFFERED": "1"}


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """One line, empty at the end; what is far too long for a line is dropped."""
    while True:
        try:
            return await stream.readline()
        except ValueError:
            continue
