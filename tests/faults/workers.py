"""One worker process in a test's hands, behind fault proxies on every way to and from it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psutil

from tests.faults.proxies import Proxy, proxy_to, two_ways_to
from tests.integration.processes import RunningCommand, new_address, running_command


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker, and the proxies on the ways to it and from it to the coordinator.

    `calls` leads what the coordinator dials: its calls, the steps for the first stage, and the
    results of every stage. `frames` is the path of the previous stage's connections, and of others.
    `membership` is the worker's own way to the coordinator: `Mesh.Join`.
    """

    command: RunningCommand
    calls: Proxy
    frames: Proxy
    membership: Proxy
    _stack: ExitStack

    @property
    def pid(self) -> int:
        """The operating system's id of the process."""
        return self.command.process.pid

    @property
    def address(self) -> str:
        """Where others reach it, and what the mesh calls it."""
        return self.calls.address

    @property
    def is_alive(self) -> bool:
        """Also of one that is frozen."""
        return self.command.process.poll() is None

    def heal(self) -> None:
        """No faults on any of its ways."""
        for proxy in (self.calls, self.frames, self.membership):
            proxy.heal()

    def kill(self) -> None:
        """kill -9; returns once nothing of it is left."""
        self.command.process.kill()
        self.command.process.wait()

    def freeze(self) -> None:
        """SIGSTOP."""
        psutil.Process(self.pid).suspend()

    def thaw(self) -> None:
        """SIGCONT."""
        psutil.Process(self.pid).resume()

    def close(self) -> None:
        """Ends what is left of it, its proxies among that."""
        self._stack.close()


@contextmanager
def worker_process(
    mesh_address: str, is_coordinators: Callable[[int], bool], options: tuple[str, ...]
) -> Iterator[WorkerProcess]:
    """One more worker; `is_coordinators` is true for ports from which the coordinator dials."""
    with ExitStack() as stack:
        listen = new_address()
        calls, frames = stack.enter_context(two_ways_to(listen, is_coordinators))
        membership = stack.enter_context(proxy_to(mesh_address))
        ways = ("--listen", listen, "--advertise", calls.address)
        command = stack.enter_context(
            running_command(
                *("worker", "--coordinator", membership.address, *ways, "--threads", "1"), *options
            )
        )
        yield WorkerProcess(command, calls, frames, membership, stack)
