"""Owns a mesh on this machine: coordinator and workers as child processes, watched until the end.

`local_mesh` starts them, restarts workers that die, gives up with one `LaunchError` when that does
not help, and leaves no process behind. It shows nothing and computes nothing.
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
from stagemesh.launcher.absence import MissingWorkers
from stagemesh.launcher.child_process import ChildProcess, LineFn
from stagemesh.launcher.vigil import ENDING_SECONDS, refuses
from stagemesh.launcher.worker_supervisor import (
    FleetPlan,
    RestartPolicy,
    WorkerSupervisor,
    end_of,
    stop_children,
)

POLL_SECONDS = 0.1
WATCH_SECONDS = 1.0
# What a process may take to end when what it ran has ended.
STOP_SECONDS = 5.0
# A worker that is alive rejoins within seconds; one that is frozen does not.
ABSENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What to start: the commands' arguments, and where the APIs will be (no port is 0)."""

    coordinator: tuple[str, ...]
    workers: FleetPlan
    target: str
    http: str
    # Where the launcher asks what the mesh is doing.
    mesh: str
    mesh_tls: MeshTls | None = None
    is_api_tls: bool = False
    # How long the coordinator lets running requests go on when it is to stop.
    grace_seconds: float = 10.0


class LocalMesh:
    """The running children; made by `local_mesh`."""

    def __init__(self, plan: LaunchPlan, on_line: LineFn, restarts: RestartPolicy) -> None:
        self.plan = plan
        self._fleet = WorkerSupervisor(plan.workers, on_line, restarts)
        # The coordinator, too.
        self.children = self._fleet.children
        self._on_line = on_line
        self._absences = MissingWorkers(ABSENCE_SECONDS, ENDING_SECONDS)
        tls = None if plan.mesh_tls is None else plan.mesh_tls.credentials_for(Role.COORDINATOR)
        self._client = AsyncClient(plan.mesh, tls=tls)

    async def until_ready(self, on_state: Callable[[MeshState], None]) -> MeshState:
        """Follows the start, state by state; LaunchError if the mesh cannot be formed."""
        while True:
            state = await self._state()
            if state is not None:
                on_state(state)
                if state.ready and all(replica.serving for replica in state.replicas):
                    return state
            await asyncio.sleep(POLL_SECONDS)

    async def watch(self, on_state: Callable[[MeshState], None]) -> NoReturn:
        """Follows a mesh that serves; ends with LaunchError or by cancellation."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            state = await self._state()
            if state is not None:
                on_state(state)

    def kill(self) -> None:
        """Ends every child at once; `local_mesh` then returns quickly."""
        self._fleet.kill()

    async def _state(self) -> MeshState | None:
        """The mesh's state, None while the coordinator does not answer (its process is watched)."""
        try:
            state = await self._client.state()
        except StagemeshRpcError:
            return None
        if state.failure:
            raise LaunchError(problem=state.failure)
        await self._end_absent(state)
        return state

    async def _end_absent(self, state: MeshState) -> None:
        """Kills workers that live but left the mesh long ago; their supervisors start new ones.

        One that listens no more is ending, which may take its time.
        """
        workers = {child.pid: child for child in self.children.values() if child.is_running}
        joined = {worker.pid for worker in state.workers}
        now = asyncio.get_running_loop().time()
        for pid in self._absences.note(workers.keys(), joined, now):
            address = self._fleet.address_of(workers[pid].name)
            if not self._absences.is_overdue(pid, now) and await refuses(address, WATCH_SECONDS):
                continue
            self._on_line(f"{workers[pid].name} does not come back to the mesh: killed")
            workers[pid].kill()

    async def _supervise_coordinator(self) -> NoReturn:
        child = await ChildProcess.start("coordinator", self.plan.coordinator, self._on_line)
        self.children["coordinator"] = child
        raise end_of(child, await child.follow())

    def _start_all(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[NoReturn]]:
        return [tasks.create_task(self._supervise_coordinator()), *self._fleet.start_all(tasks)]

    async def _stop_all(self) -> None:
        """The coordinator first, so that it sees no worker vanish and can finish its streams."""
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
    """A mesh that lives as long as the block; LaunchError ends the block when it fails."""
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
