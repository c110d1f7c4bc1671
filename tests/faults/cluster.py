"""A mesh of single processes in a test's hands: one coordinator, workers, and one to spare.

Every link that a worker is dialled on, and its own way to the coordinator, leads through a fault
proxy. Nobody starts a dead process again but the test.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from stagemesh import Client, MeshState, StagemeshRpcError
from stagemesh.ports import reserve
from tests.faults.proxies import Proxy, proxy_to
from tests.integration.processes import Mesh, RunningCommand, running_command

STATE_SECONDS = 60.0
# Between two looks at the state, which cost the mesh something.
LOOK_SECONDS = 0.02
OPTIONS = ("--max-step-tokens", "64", "--kv-memory", "64MiB", "--log-level", "info")


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker, and the proxies on the ways to it and from it to the coordinator."""

    command: RunningCommand
    inward: Proxy
    outward: Proxy

    @property
    def pid(self) -> int:
        """The operating system's id of the process."""
        return self.command.process.pid

    def kill(self) -> None:
        """kill -9; returns once nothing of it is left."""
        self.command.process.kill()
        self.command.process.wait()


@dataclass(slots=True)
class Cluster:
    """The running processes; made by `cluster_of`."""

    model: str
    num_stages: int
    num_ranks: int
    stack: ExitStack
    security: tuple[str, ...] = ()
    target: str = field(default_factory=lambda: reserve("127.0.0.1:0"))
    http: str = field(default_factory=lambda: reserve("127.0.0.1:0"))
    mesh_address: str = field(default_factory=lambda: reserve("127.0.0.1:0"))
    workers: list[WorkerProcess] = field(default_factory=list)
    coordinator: RunningCommand | None = None

    def start_coordinator(self) -> RunningCommand:
        """At the same addresses each time."""
        addresses = ("--grpc", self.target, "--http", self.http, "--mesh", self.mesh_address)
        plan = ("--pp", str(self.num_stages), "--tp", str(self.num_ranks))
        self.coordinator = self.stack.enter_context(
            running_command("coordinator", self.model, *plan, *addresses, *OPTIONS, *self.security)
        )
        return self.coordinator

    def start_worker(self) -> WorkerProcess:
        """One more."""
        listen = reserve("127.0.0.1:0")
        inward = self.stack.enter_context(proxy_to(listen))
        outward = self.stack.enter_context(proxy_to(self.mesh_address))
        ways = ("--listen", listen, "--advertise", inward.address)
        command = self.stack.enter_context(
            running_command(
                *("worker", "--coordinator", outward.address, *ways, "--threads", "1"),
                *self.security,
            )
        )
        worker = WorkerProcess(command, inward, outward)
        self.workers.append(worker)
        return worker

    def refill(self, num_spares: int = 1) -> None:
        """Serving again, with the workers that it needs and some to spare, all links healed."""
        for worker in self.workers:
            worker.inward.heal()
            worker.outward.heal()
        self.workers = [each for each in self.workers if each.command.process.poll() is None]
        num_workers = self.num_stages * self.num_ranks + num_spares
        while len(self.workers) < num_workers:
            self.start_worker()
        self.wait_until(lambda state: state.ready and len(state.workers) == num_workers, "whole")

    def state(self) -> MeshState | None:
        """What the mesh is doing; None while nobody answers."""
        try:
            with Client(self.target) as client:
                return client.state()
        except StagemeshRpcError:
            return None

    def wait_until(self, is_wanted: Callable[[MeshState], bool], what: str) -> MeshState:
        """The first state that is wanted."""
        deadline = time.monotonic() + STATE_SECONDS
        state = None
        with Client(self.target) as client:
            while time.monotonic() < deadline:
                with suppress(StagemeshRpcError):
                    state = client.state()
                    if is_wanted(state):
                        return state
                time.sleep(LOOK_SECONDS)
        raise AssertionError(f"the mesh is not {what}: {state}\n{self.logs()}")

    def worker_of(self, stage: int, rank: int = 0) -> WorkerProcess:
        """The worker that runs that part now."""
        state = self.wait_until(lambda state: state.ready, "ready")
        worker_id = state.replicas[0].stages[stage].worker_ids[rank]
        (pid,) = (worker.pid for worker in state.workers if worker.worker_id == worker_id)
        (found,) = (worker for worker in self.workers if worker.pid == pid)
        return found

    def spare(self) -> WorkerProcess:
        """The worker that no stage uses; there is one."""
        state = self.wait_until(lambda state: state.ready, "ready")
        used = {id for stage in state.replicas[0].stages for id in stage.worker_ids}
        (pid,) = (worker.pid for worker in state.workers if worker.worker_id not in used)
        (found,) = (worker for worker in self.workers if worker.pid == pid)
        return found

    def assert_idle(self) -> None:
        """No request, block or slot is held, by the word of coordinator and workers."""
        assert self.coordinator is not None
        self.wait_until(lambda state: state.ready, "ready")
        Mesh(self.coordinator, self.target, self.http).assert_idle()

    def logs(self) -> str:
        """The last that every process said."""
        commands = [worker.command for worker in self.workers]
        if self.coordinator is not None:
            commands.append(self.coordinator)
        return "\n".join(line for command in commands for line in command.log.lines[-15:])


@contextmanager
def cluster_of(
    model: str,
    num_stages: int = 2,
    num_ranks: int = 1,
    num_spares: int = 1,
    security: tuple[str, ...] = (),
) -> Iterator[Cluster]:
    """A whole mesh that serves; at the end nothing of it is left."""
    with ExitStack() as stack:
        cluster = Cluster(model, num_stages, num_ranks, stack, security)
        cluster.start_coordinator()
        cluster.refill(num_spares)
        yield cluster


@contextmanager
def kept_whole(cluster: Cluster) -> Iterator[None]:
    """A shared mesh for one test: whole before; whole and idle after."""
    cluster.refill()
    yield
    cluster.refill()
    cluster.assert_idle()
