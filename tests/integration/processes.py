"""Real `stagemesh` processes in a test's hands: started, read, signalled, and gone at the end."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import grpc
import psutil

from protos import stage_pb2
from runtime.errors import PortTakenError
from stagemesh import Client, GenerationRequest, MeshState, Update
from stagemesh.launcher.ports import reserve
from tests.integration.fork_server import fork_server
from tests.integration.process_log import STOP_SECONDS, Log

COMMAND = (sys.executable, "-m", "stagemesh")
ANSWER_SECONDS = 60.0
# Between two requests for a state: without a pause they take the processor from what they wait for.
POLL_SECONDS = 0.02
# Below the ephemeral ports of the system, which outgoing connections use in the meantime.
LISTENING_PORTS = range(12_000, 32_000)


def _ports_in_turn() -> Iterator[int]:
    """Ports that no test process beside this one has, each again only after all others.

    Drawing each by chance gave two processes of one mesh the same port now and then.
    """
    part = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    num_parts = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports = LISTENING_PORTS[part::num_parts]
    # The system's own chance: Hypothesis seeds `random` alike in every process of tests.
    begin = random.SystemRandom().randrange(len(ports))
    return cycle((*ports[begin:], *ports[:begin]))


_PORTS = _ports_in_turn()


def new_address() -> str:
    """HOST:PORT that is free, and stays so until a process that is being started listens there."""
    for port in _PORTS:
        with suppress(PortTakenError):
            return reserve(f"127.0.0.1:{port}")
    raise AssertionError("ports in turn never end")


@dataclass(frozen=True, slots=True)
class RunningCommand:
    """A `stagemesh` command that runs until it is stopped."""

    process: subprocess.Popen[str]
    log: Log

    def descendants(self) -> list[psutil.Process]:
        """The processes that it has started and that are alive."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the command alone."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code, once the command has ended and its log is read."""
        code = self.process.wait(STOP_SECONDS)
        self.log.close()
        return code


@contextmanager
def running_command(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = COMMAND,
    folder: Path | None = None,
) -> Iterator[RunningCommand]:
    """Starts `PROGRAM ARGUMENTS` in `folder`; no process of it is left at the end."""
    process = subprocess.Popen(
        (*program, *arguments),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (env or {}),
    )
    assert process.stderr is not None
    command = RunningCommand(process, Log(process.stderr))
    try:
        yield command
    finally:
        left = command.descendants() if process.poll() is None else []
        process.kill()
        process.wait()
        for child in left:
            child.kill()
        command.log.close()


def run_command(
    *arguments: str, env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs `stagemesh ARGUMENTS` to its end."""
    return fork_server().run(arguments, os.environ | (env or {}), stdin)


def until(client: Client, is_so: Callable[[MeshState], bool]) -> MeshState:
    """The first state of which `is_so` holds, within `STOP_SECONDS`."""
    deadline = time.monotonic() + STOP_SECONDS
    while not is_so(state := client.state()):
        assert time.monotonic() < deadline, state
        time.sleep(POLL_SECONDS)
    return state


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh that serves, in real processes."""

    command: RunningCommand
    target: str
    http: str

    def ask(self, request: GenerationRequest, timeout_seconds: float = ANSWER_SECONDS) -> "Answers":
        """All updates of a request, by prompt."""
        with Client(self.target) as client:
            return Answers(list(client.infer(request, timeout_seconds=timeout_seconds)))

    def state(self) -> MeshState:
        """What the mesh is doing."""
        with Client(self.target) as client:
            return client.state()

    def until(self, is_so: Callable[[MeshState], bool]) -> MeshState:
        """The first state of which `is_so` holds, within `STOP_SECONDS`."""
        with Client(self.target) as client:
            return until(client, is_so)

    def assert_idle(self) -> None:
        """Nothing runs or waits, and no slot or block is held, at the latest after a moment.

        Neither by the coordinator's word nor by the workers' own.
        """
        deadline = time.monotonic() + STOP_SECONDS
        with Client(self.target) as client:
            while (left := _held(client.state())) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            assert not left, f"still held: {left}"
            for worker in client.state().workers:
                while (left := _held_by(worker.address)) and time.monotonic() < deadline:
                    time.sleep(POLL_SECONDS)
                assert not left, f"still held by {worker.address}: {left}"

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Ends the mesh as a user would; asserts a clean exit and that no process is left."""
        children = self.command.descendants()
        self.command.signal(number)
        assert self.command.wait() == 0, "\n".join(self.command.log.lines)
        assert_all_end(children)


@dataclass(frozen=True, slots=True)
class Answers:
    """The updates of one request, in the order in which they came."""

    updates: list[Update]

    def of(self, index: int) -> list[Update]:
        """The updates of one prompt."""
        return [update for update in self.updates if update.index == index]

    def text(self, index: int = 0) -> str:
        """One prompt's whole text."""
        return "".join(update.text for update in self.of(index))

    def token_ids(self, index: int = 0) -> tuple[int, ...]:
        """One prompt's generated tokens."""
        return tuple(token.id for update in self.of(index) for token in update.tokens)

    def end(self, index: int = 0) -> Update:
        """One prompt's last update, the only one with a finish reason."""
        *others, last = self.of(index)
        assert last.finish_reason is not None
        assert all(update.finish_reason is None for update in others)
        return last


@contextmanager
def serving(model: str, *options: str, env: Mapping[str, str] | None = None) -> Iterator[Mesh]:
    """`stagemesh serve MODEL OPTIONS` on free ports, ready; one thread for each worker."""
    target, http = new_address(), new_address()
    addresses = ("--grpc", target, "--http", http, "--mesh", "127.0.0.1:0")
    with running_command(
        "serve", model, *addresses, "--threads", "1", *options, env=env
    ) as command:
        command.log.wait_for("Ctrl-C stops it")
        yield Mesh(command, target, http)


def assert_all_end(processes: list[psutil.Process]) -> None:
    """All of them are gone, at the latest after a moment."""
    _, alive = psutil.wait_procs(processes, timeout=STOP_SECONDS)
    assert alive == []


def _held_by(address: str) -> dict[str, int]:
    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary(
            "/stagemesh.v1.Stage/Status",
            stage_pb2.StatusRequest.SerializeToString,
            stage_pb2.StatusResponse.FromString,
        )
        status = ask(stage_pb2.StatusRequest(), timeout=STOP_SECONDS)
    held = {"blocks": status.num_kv_blocks_used, "slots": status.num_slots_used}
    return {name: count for name, count in held.items() if count}


def _held(state: MeshState) -> dict[str, int]:
    held = {"running": state.num_running, "waiting": state.num_waiting}
    for replica in state.replicas:
        held |= {"blocks": replica.num_kv_blocks_used, "slots": replica.num_slots_used}
    return {name: count for name, count in held.items() if count}


@contextmanager
def leaving_no_child() -> Iterator[None]:
    """Asserts that the block leaves no child process that was not there before."""
    fork_server()  # which stays
    before = psutil.Process().children(recursive=True)
    yield
    left = set(psutil.Process().children(recursive=True)) - set(before)
    assert not left, f"still running: {left}"
