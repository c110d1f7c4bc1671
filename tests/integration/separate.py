"""A coordinator and workers as processes of their own, each in the test's hands."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from stagemesh import Client, MeshState, StagemeshRpcError
from tests.integration.processes import (
    POLL_SECONDS,
    Mesh,
    RunningCommand,
    new_address,
    running_command,
)


@dataclass(slots=True)
class SeparateMesh:
    """Where the coordinator listens, and what runs; everything ends with `stack`."""

    model: str
    options: tuple[str, ...]
    stack: ExitStack
    target: str = field(default_factory=new_address)
    http: str = field(default_factory=new_address)
    mesh: str = field(default_factory=new_address)

    def start_coordinator(self) -> Mesh:
        """A coordinator, always at the same addresses."""
        addresses = ("--grpc", self.target, "--http", self.http, "--mesh", self.mesh)
        command = self.stack.enter_context(
            running_command("coordinator", self.model, *addresses, *self.options)
        )
        command.log.wait_for("coordinator_listening")
        return Mesh(command, self.target, self.http)

    def start_worker(self, *options: str) -> RunningCommand:
        """A worker that joins."""
        return self.stack.enter_context(
            running_command("worker", "--coordinator", self.mesh, "--threads", "1", *options)
        )

    def until(self, is_so: Callable[[MeshState], bool]) -> MeshState:
        """Asks for the state until it is as wanted; the test's timeout bounds the wait."""
        with Client(self.target) as client:
            while True:
                with suppress(StagemeshRpcError):  # while the coordinator starts
                    if is_so(state := client.state()):
                        return state
                time.sleep(POLL_SECONDS)

    def until_ready(self, num_workers: int) -> MeshState:
        """Every replica serves, and the mesh has `num_workers` workers."""
        return self.until(
            lambda state: (
                state.ready
                and all(replica.serving for replica in state.replicas)
                and len(state.workers) == num_workers
            )
        )


@contextmanager
def separate_mesh(model: str, *options: str) -> Iterator[SeparateMesh]:
    """A mesh without any process yet; at the end none of it is left."""
    with ExitStack() as stack:
        yield SeparateMesh(model, options, stack)
