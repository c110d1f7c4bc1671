"""Runs a mesh on this machine: a coordinator and workers as child processes, stopped at the end.

`local_mesh` starts the processes, restarts workers that exit, raises one `LaunchError` when the
mesh cannot run, and leaves no process behind. It prints nothing and computes nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

from runtime.errors import LaunchError
from runtime.rpc.tls import MeshTls, Role
from stagemesh.client.async_client import AsyncClient
from stagemesh.client.rpc_error import StagemeshRpcError
from stagemesh.client.state import MeshState
from stagemesh.launcher.child_process import ChildProcess, LineFn
from stagemesh.launcher.liveness import SHUTDOWN_SECONDS, MissingWorkers, refuses_connections
from stagemesh.launcher.worker_supervisor import (
    RestartPolicy,
    WorkerLaunchPlan,
    WorkerSupervisor,
    launch_error,
    stop_children,
)

STARTUP_POLL_SECONDS = 0.1
POLL_SECONDS = 1.0
# The time that a process may take to exit after its requests have ended.
STOP_SECONDS = 5.0
# A live worker rejoins the mesh within seconds; a frozen one does not.
MISSING_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The arguments of the processes, and the addresses of their APIs, whose ports are not 0."""

    coordinator: tuple[str, ...]
    workers: WorkerLaunchPlan
    target: str
    http: str
    # The coordinator's mesh address, for polls of the mesh's state.
    mesh: str
    mesh_tls: MeshTls | None = None
    is_api_tls: bool = False
    # The time that running requests have to finish after a stop signal.
    grace_seconds: float = 10.0


class LocalMesh:
    """The running child processes; created by `local_mesh`."""

    def __init__(self, plan: LaunchPlan, on_line: LineFn, restarts: RestartPolicy) -> None:
        self.plan = plan
        self._supervisor = WorkerSupervisor(plan.workers, on_line, restarts)
        # Includes the coordinator.
        self.children = self._supervisor.children
        self._on_line = on_line
        self._missing = MissingWorkers(MISSING_SECONDS, SHUTDOWN_SECONDS)
        tls = None if plan.mesh_tls is None else plan.mesh_tls.credentials_for(Role.COORDINATOR)
        self._client = AsyncClient(plan.mesh, tls=tls)

    async def wait_until_ready(self, on_state: Callable[[MeshState], None]) -> MeshState:
        """Polls until all replicas serve, and returns that state; LaunchError if startup fails."""
        while True:
            state = await self._state()
            if state is not None:
                on_state(state)
                if state.ready and all(replica.serving for replica in state.replicas):
                    return state
            await asyncio.sleep(STARTUP_POLL_SECONDS)

    async def watch(self, on_state: Callable[[MeshState], None]) -> NoReturn:
        """Polls a mesh that serves; ends with LaunchError or by cancellation."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            state = await self._state()
            if state is not None:
                on_state(state)

    def kill(self) -> None:
        """Sends SIGKILL to every child; `local_mesh` then returns quickly."""
        self._supervisor.kill()

    async def _state(self) -> MeshState | None:
        """The mesh's state, or None if the coordinator does not answer."""
        try:
            state = await self._client.state()
        except StagemeshRpcError:
            return None
        if state.failure:
            raise LaunchError(problem=state.failure)
        await self._kill_missing(state)
        return state

    async def _kill_missing(self, state: MeshState) -> None:
        """Kills workers that run but left the mesh; the supervisor restarts them.

        A worker that refuses connections is shutting down and has `SHUTDOWN_SECONDS` for that.
        """
        workers = {child.pid: child for child in self.children.values() if child.is_running}
        joined = {worker.pid for worker in state.workers}
        now = asyncio.get_running_loop().time()
        for pid in self._missing.update(workers.keys(), joined, now):
            address = self._supervisor.address_of(workers[pid].name)
            is_overdue = self._missing.exceeds_shutdown_time(pid, now)
            if not is_overdue and await refuses_connections(address, POLL_SECONDS):
                continue
            self._on_line(f"{workers[pid].name} did not rejoin the mesh: killed")
            workers[pid].kill()

    async def _supervise_coordinator(self) -> NoReturn:
        child = await ChildProcess.start("coordinator", self.plan.coordinator, self._on_line)
        self.children["coordinator"] = child
        raise launch_error(child, await child.follow())

    def _start_all(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[NoReturn]]:
        return [
            tasks.create_task(self._supervise_coordinator()),
            *self._supervisor.start_all(tasks),
        ]

    async def _stop_all(self) -> None:
        """Stops the coordinator first, so that it can finish requests while the workers run."""
        try:
            await self._client.close()
            if coordinator := self.children.get("coordinator"):
                await coordinator.stop(self.plan.grace_seconds + STOP_SECONDS)
            await stop_children(self.children.values(), STOP_SECONDS)
        finally:
            self.kill()


@asynccontextmanager
async def local_mesh(
    plan: LaunchPlan, on_line: LineFn, restarts: RestartPolicy | None = None
) -> AsyncIterator[LocalMesh]:
    """Runs a mesh for the duration of the block; a failure cancels the block with LaunchError."""
    try:
        async with asyncio.TaskGroup() as tasks:
            mesh = LocalMesh(plan, on_line, restarts or RestartPolicy())
            supervisors = mesh._start_all(tasks)
            try:
                yield mesh
            finally:
                for supervisor in supervisors:
                    supervisor.cancel()
                await asyncio.wait(supervisors)
                await mesh._stop_all()
    except BaseExceptionGroup as failures:
        launch_failures = failures.subgroup(LaunchError)
        raise (launch_failures or failures).exceptions[0] from failures
