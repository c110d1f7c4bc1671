"""Runs `stagemesh` commands in forks of one process that has imported all of them.

Every command is a process of its own, as in a shell, but does not import torch, gRPC and the
packages again, which takes one to three seconds of processor time. For commands that end by
themselves; `running_command` starts the others.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

from tests.integration.process_log import START_SECONDS

PRELOADED = ("coordinator.server", "stage_worker.server", "stagemesh.cli")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class ForkServer:
    """The process whose forks run the commands; it ends with its standard input."""

    process: subprocess.Popen[str]

    def run(
        self, arguments: Sequence[str], env: Mapping[str, str], stdin: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs `stagemesh ARGUMENTS`, at most `START_SECONDS` long."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "stdin").write_text(stdin)
            request = {"arguments": list(arguments), "env": dict(env), "folder": name}
            _stream(self.process.stdin).write(json.dumps(request) + "\n")
            _stream(self.process.stdin).flush()
            code = int(_stream(self.process.stdout).readline())
            out, err = ((folder / each).read_text() for each in ("stdout", "stderr"))
        return subprocess.CompletedProcess(list(arguments), code, out, err)


@cache
def fork_server() -> ForkServer:
    """This test process's own; started at the first call."""
    process = subprocess.Popen(
        (sys.executable, __file__),
        # A fork has no other threads than the one that forked, so numpy must start none.
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return ForkServer(process)


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _serve() -> None:
    for package in PRELOADED:
        importlib.import_module(package)
    os.environ.pop("OPENBLAS_NUM_THREADS")
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(request["arguments"], request["env"], Path(request["folder"]))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _run(arguments: list[str], env: dict[str, str], folder: Path) -> NoReturn:
    """In the fork: the command's main function, with files in place of the standard streams."""
    from stagemesh.__main__ import main

    signal.alarm(int(START_SECONDS))
    os.environ.clear()
    os.environ.update(env)
    for descriptor, (name, mode) in enumerate(
        (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))
    ):
        file = os.open(folder / name, mode | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv = ["stagemesh", *arguments]
    main()


if __name__ == "__main__":
    _serve()
