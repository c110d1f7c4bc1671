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
from stagemesh.children import EXIT_ADDRESS_TAKEN, EXIT_REFUSED, Child, LineFn
from stagemesh.client import AsyncClient
from stagemesh.ports import free_address
from stagemesh.rpc_error import StagemeshRpcError
from stagemesh.state import MeshState

POLL_SECONDS = 0.1
WATCH_SECONDS = 1.0
# A coordinator lets running requests go on for 10 s after it was asked to stop.
COORDINATOR_GRACE_SECONDS = 15.0
WORKER_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What to start: the commands' arguments, and where the doors will be (no port is 0)."""

    coordinator: tuple[str, ...]
    # Without --listen, which is chosen at each start of a worker.
    worker: tuple[str, ...]
    num_workers: int
    target: str
    http: str
    # Workers listen on this address's host, on the first free ports from its port up.
    first_worker_address: str
    # What the launcher shows to be told the state.
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a worker may die: delays double, and a worker that lived long starts anew."""

    max_restarts: int = 5
    first_delay_seconds: float = 0.5
    healthy_seconds: float = 60.0


class LocalMesh:
    """The running children; made by `local_mesh`."""

    def __init__(self, plan: LaunchPlan, on_line: LineFn, restarts: RestartPolicy) -> None:
        self.plan = plan
        self.children: dict[str, Child] = {}
        self._on_line = on_line
        self._restarts = restarts
        self._worker_addresses: dict[str, str] = {}
        self._client = AsyncClient(plan.target, api_key=plan.api_key)

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
        for child in self.children.values():
            child.kill()

    async def _state(self) -> MeshState | None:
        """The mesh's state, None while the coordinator does not answer (its process is watched)."""
        try:
            state = await self._client.state()
        except StagemeshRpcError:
            return None
        if state.failure:
            raise LaunchError(problem=state.failure)
        return state

    async def _supervise_coordinator(self) -> NoReturn:
        child = await self._start("coordinator", self.plan.coordinator)
        raise _end_of(child, await child.follow())

    async def _supervise_worker(self, name: str) -> NoReturn:
        """Keeps one worker running; LaunchError when it refuses or keeps dying."""
        clock = asyncio.get_running_loop().time
        num_deaths = 0
        while True:
            started = clock()
            child = await self._start(name, (*self.plan.worker, "--listen", self._address_of(name)))
            code = await child.follow()
            num_deaths = 1 if clock() - started > self._restarts.healthy_seconds else num_deaths + 1
            if code == EXIT_REFUSED or num_deaths > self._restarts.max_restarts:
                raise _end_of(child, code)
            delay = self._restarts.first_delay_seconds * 2 ** (num_deaths - 1)
            self._on_line(f"{name} {_how_it_ended(code)}; starting it again in {delay:.1f} s")
            await asyncio.sleep(delay)

    def _address_of(self, name: str) -> str:
        """A free address for this start of the worker; no other worker's."""
        others = {address for other, address in self._worker_addresses.items() if other != name}
        address = free_address(self.plan.first_worker_address, taken=others)
        self._worker_addresses[name] = address
        return address

    async def _start(self, name: str, arguments: tuple[str, ...]) -> Child:
        child = await Child.start(name, arguments, self._on_line)
        self.children[name] = child
        return child

    def _start_all(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[NoReturn]]:
        names = [f"worker {index}" for index in range(self.plan.num_workers)]
        workers = [tasks.create_task(self._supervise_worker(name)) for name in names]
        return [tasks.create_task(self._supervise_coordinator()), *workers]

    async def _stop_all(self) -> None:
        """The coordinator first, so that it sees no worker vanish and can finish its streams."""
        try:
            await self._client.close()
            if coordinator := self.children.get("coordinator"):
                await coordinator.stop(COORDINATOR_GRACE_SECONDS)
            async with asyncio.TaskGroup() as stops:
                for child in self.children.values():
                    stops.create_task(child.stop(WORKER_GRACE_SECONDS))
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


def _end_of(child: Child, code: int) -> LaunchError:
    if child.last_error:
        return LaunchError(problem=f"{child.name}: {child.last_error}")
    return LaunchError(
        problem=f"{child.name} {_how_it_ended(code)}; its log, above, may say why "
        "(--log-level info shows more)"
    )


def _how_it_ended(code: int) -> str:
    if code == EXIT_ADDRESS_TAKEN:
        return "found its address taken"
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
