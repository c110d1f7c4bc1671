"""A mesh of single processes in a test's hands: one coordinator, workers, and some to spare.

Every link that a worker is dialled on, and its own way to the coordinator, leads through a fault
proxy. Nobody starts a dead process again but the test.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import psutil

from stagemesh import Client, MeshState, StagemeshRpcError
from tests.faults.workers import WorkerProcess, worker_process
from tests.integration.processes import Mesh, RunningCommand, new_address, running_command

STATE_SECONDS = 60.0
# Between two looks at the state, which cost the mesh something.
LOOK_SECONDS = 0.02
# Nobody runs out of time to leave, and no replica makes do with fewer stages.
GRACE = ("--grace", "60")
OPTIONS = (
    *("--max-step-tokens", "64", "--kv-memory", "16MiB", "--log-level", "info"),
    *("--replan-after", "120"),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a mesh is made of: ranks of each stage, replicas, and workers that stand by.

    `options` are the coordinator's alone, `security` every process's.
    """

    tp: tuple[int, ...] = (1, 1)
    dp: int = 1
    num_spares: int = 1
    options: tuple[str, ...] = ()
    security: tuple[str, ...] = ()

    @property
    def num_workers(self) -> int:
        """Those that stand by among them."""
        return self.dp * sum(self.tp) + self.num_spares

    @property
    def plan(self) -> tuple[str, ...]:
        """As the command line takes it."""
        tp = ",".join(map(str, self.tp))
        return ("--pp", str(len(self.tp)), "--tp", tp, "--dp", str(self.dp))

    def is_whole(self, state: MeshState) -> bool:
        """Every replica serves with all its stages, and those that stand by are there."""
        return (
            len(state.workers) == self.num_workers
            and len(state.replicas) == self.dp
            and all(
                replica.serving and len(replica.stages) == len(self.tp)
                for replica in state.replicas
            )
        )


@dataclass(frozen=True, slots=True)
class Place:
    """One worker's part in a mesh."""

    stage: int = 0
    rank: int = 0
    replica: int = 0


@dataclass(slots=True)
class Cluster:
    """The running processes; made by `cluster_of`."""

    model: str
    layout: Layout
    stack: ExitStack
    target: str = field(default_factory=new_address)
    http: str = field(default_factory=new_address)
    mesh_address: str = field(default_factory=new_address)
    workers: list[WorkerProcess] = field(default_factory=list)
    _coordinator: RunningCommand | None = None
    # The last words of workers that are gone.
    _past: deque[str] = field(default_factory=lambda: deque(maxlen=60))

    @property
    def coordinator(self) -> RunningCommand:
        """The latest one."""
        assert self._coordinator is not None
        return self._coordinator

    def start_coordinator(self) -> RunningCommand:
        """At the same addresses each time."""
        addresses = ("--grpc", self.target, "--http", self.http, "--mesh", self.mesh_address)
        layout = self.layout
        options = (*layout.plan, *addresses, *OPTIONS, *GRACE, *layout.options, *layout.security)
        self._coordinator = self.stack.enter_context(
            running_command("coordinator", self.model, *options)
        )
        return self._coordinator

    def start_worker(self) -> WorkerProcess:
        """One more."""
        options = (*GRACE, *self.layout.security)
        worker = self.stack.enter_context(
            worker_process(self.mesh_address, self._is_coordinators, options)
        )
        self.workers.append(worker)
        return worker

    def refill(self) -> None:
        """Serving again, with the workers that it needs and those to spare, all links healed."""
        for worker in self.workers:
            worker.heal()
            if not worker.is_alive:
                worker.close()
                self._past.extend(worker.command.log.lines[-15:])
        self.workers = [worker for worker in self.workers if worker.is_alive]
        while len(self.workers) < self.layout.num_workers:
            self.start_worker()
        self.wait_until(self.layout.is_whole, "whole")

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

    def ready_state(self) -> MeshState:
        """The state, once requests are served."""
        return self.wait_until(lambda state: state.ready, "ready")

    def epoch(self, replica: int = 0) -> int:
        """Which epoch serves, once one does."""
        return self._serving(replica).replicas[replica].epoch

    def wait_for_epoch_after(self, epoch: int, replica: int = 0) -> None:
        """Returns once a later one serves."""
        self.wait_until(
            lambda state: state.replicas[replica].serving and state.replicas[replica].epoch > epoch,
            f"in an epoch after {epoch}",
        )

    def worker_at(self, place: Place) -> WorkerProcess:
        """The worker that runs that part now."""
        return self._placed(self._serving(place.replica))[place]

    def workers_in_use(self) -> dict[Place, WorkerProcess]:
        """Every worker of a whole mesh that does not stand by."""
        return self._placed(self.wait_until(self.layout.is_whole, "whole"))

    def spare(self) -> WorkerProcess:
        """The worker that no stage uses; there is one."""
        used = [worker.pid for worker in self.workers_in_use().values()]
        (found,) = (worker for worker in self.workers if worker.pid not in used)
        return found

    def wait_for_log(self, *texts: str) -> str:
        """The first line of the coordinator's log with all of these in it."""
        return self.coordinator.log.wait_for(*texts, timeout_seconds=STATE_SECONDS)

    def assert_idle(self) -> None:
        """No request, block or slot is held, by the word of coordinator and workers.

        Workers that want a certificate are not asked.
        """
        self.wait_until(_is_idle, "idle")
        if not self.layout.security:
            Mesh(self.coordinator, self.target, self.http).assert_idle()

    def logs(self) -> str:
        """The last log lines of every process."""
        commands = [worker.command for worker in self.workers]
        if self._coordinator is not None:
            commands.append(self._coordinator)
        lines = [line for command in commands for line in command.log.lines[-15:]]
        return "\n".join((*self._past, *lines))

    def _serving(self, replica: int) -> MeshState:
        return self.wait_until(
            lambda state: len(state.replicas) > replica and state.replicas[replica].serving,
            f"serving with replica {replica}",
        )

    def _placed(self, state: MeshState) -> dict[Place, WorkerProcess]:
        """Who is where; not those that have left before their replica's end was noticed."""
        pids = {worker.worker_id: worker.pid for worker in state.workers}
        processes = {worker.pid: worker for worker in self.workers}
        return {
            Place(stage.stage, rank, replica.replica): processes[pids[worker_id]]
            for replica in state.replicas
            if replica.serving
            for stage in replica.stages
            for rank, worker_id in enumerate(stage.worker_ids)
            if worker_id in pids
        }

    def _is_coordinators(self, port: int) -> bool:
        """Whether the coordinator dials from that port."""
        try:
            connections = psutil.Process(self.coordinator.process.pid).net_connections("tcp")
        except psutil.Error:
            return False
        return any(connection.laddr.port == port for connection in connections)


def _is_idle(state: MeshState) -> bool:
    return state.num_running == state.num_waiting == 0 and all(
        replica.num_kv_blocks_used == replica.num_slots_used == 0 for replica in state.replicas
    )


@contextmanager
def cluster_of(model: str, layout: Layout = Layout()) -> Iterator[Cluster]:
    """A whole mesh that serves; at the end nothing of it is left."""
    with ExitStack() as stack:
        cluster = Cluster(model, layout, stack)
        cluster.start_coordinator()
        cluster.refill()
        yield cluster


@contextmanager
def kept_whole(cluster: Cluster) -> Iterator[None]:
    """A shared mesh for one test: whole before; whole and idle after."""
    cluster.refill()
    yield
    cluster.refill()
    cluster.assert_idle()
