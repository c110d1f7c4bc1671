"""Owns the workers of one machine as child processes: one for each device, restarted when they end.

It knows no coordinator; it passes log lines on and shows nothing.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from runtime.backoff import Backoff
from runtime.errors import CertificateError, LaunchError
from runtime.rpc.channels import ChannelTls
from runtime.rpc.tls import MeshTls, Role
from stagemesh.launcher.child_process import EXIT_ADDRESS_TAKEN, EXIT_REFUSED, ChildProcess, LineFn
from stagemesh.launcher.ports import dialable, free_address
from stagemesh.launcher.vigil import until_frozen

_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a worker may end, and how long it is waited for then.

    Delays double with each end in a row that came within `healthy_seconds`, also if it was a clean
    one; only deaths count towards `max_restarts`.
    """

    max_restarts: int = 5
    backoff: Backoff = Backoff(first_seconds=0.5, max_seconds=30.0)
    healthy_seconds: float = 60.0

    def delay_seconds(self, num_quick_ends: int) -> float:
        """Before a worker is started again that has ended so often in a row."""
        if num_quick_ends == 0:
            return 0.0
        return self.backoff.pause_seconds(num_quick_ends - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """Which workers to start.

    `arguments` are the command's, without what is chosen at each start: they listen on the first
    free ports from those of `first_address` and `first_metrics_address` up. Workers take turns at
    `devices`, the names of GPUs as CUDA knows them; without any they see what this process sees.
    `tls` is this machine's side of the mesh. With `ends_frozen`, workers that do not answer any
    more are killed; without it, somebody else sees to that. Ports of the addresses `reserved`
    are somebody else's, who may not listen there yet.
    """

    arguments: tuple[str, ...]
    num_workers: int
    first_address: str
    first_metrics_address: str | None = None
    devices: tuple[str, ...] = ()
    tls: MeshTls | None = None
    ends_frozen: bool = False
    reserved: tuple[str, ...] = ()


@dataclass(slots=True)
class WorkerSupervisor:
    """The running workers; `children` may be shared with whoever stops them."""

    plan: FleetPlan
    on_line: LineFn
    restarts: RestartPolicy
    children: dict[str, ChildProcess] = field(default_factory=dict)
    _addresses: dict[str, str] = field(default_factory=dict)

    def start_all(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[NoReturn]]:
        """Supervises every worker; a task ends with `LaunchError` only, or cancelled."""
        return [tasks.create_task(self._supervise(index)) for index in range(self.plan.num_workers)]

    async def run(self, grace_seconds: float) -> NoReturn:
        """Until cancelled; LaunchError when a worker cannot be kept running. None is left then."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self.start_all(tasks)
        except BaseExceptionGroup as failures:
            launch_failures = failures.subgroup(LaunchError)
            raise (launch_failures or failures).exceptions[0] from failures
        finally:
            try:
                await stop_children(self.children.values(), grace_seconds)
            finally:
                self.kill()
        raise AssertionError("supervision ends with an error only")

    def address_of(self, name: str) -> str:
        """Where a worker that was started is asked."""
        return dialable(self._addresses[name])

    def kill(self) -> None:
        """Ends every worker at once."""
        for child in self.children.values():
            child.kill()

    async def _supervise(self, index: int) -> NoReturn:
        """Keeps one worker running; LaunchError when it refuses or keeps dying."""
        name, clock = f"worker {index}", asyncio.get_running_loop().time
        num_quick_ends = num_deaths = 0
        while True:
            started = clock()
            tls = self._tls()
            child = await self._start(name, index)
            code = await self._follow(child, tls)
            if clock() - started > self.restarts.healthy_seconds:
                num_quick_ends = num_deaths = 0
            else:
                num_quick_ends += 1
            num_deaths += code != 0
            if code == EXIT_REFUSED or num_deaths > self.restarts.max_restarts:
                raise end_of(child, code)
            # One that died is waited for even if it lived long.
            delay = self.restarts.delay_seconds(max(num_quick_ends, int(code != 0)))
            how = how_it_ended(code) if code else "was drained"
            self.on_line(f"{name} {how}; starting it again in {delay:.1f} s")
            await asyncio.sleep(delay)

    def _tls(self) -> ChannelTls | None:
        """How to ask a worker that is about to start; LaunchError without the files for it."""
        try:
            return self.plan.tls.credentials_for(Role.WORKER) if self.plan.tls else None
        except CertificateError as error:
            raise LaunchError(problem=str(error)) from error

    async def _follow(self, child: ChildProcess, tls: ChannelTls | None) -> int:
        """Until it ends, by itself or because it is frozen; its exit code."""
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self._end_frozen(child, tls))
            code = await child.follow()
            watch.cancel()
        return code

    async def _end_frozen(self, child: ChildProcess, tls: ChannelTls | None) -> None:
        if not self.plan.ends_frozen:
            return
        await until_frozen(self.address_of(child.name), tls)
        self.on_line(f"{child.name} does not answer any more: killed")
        child.kill()

    async def _start(self, name: str, index: int) -> ChildProcess:
        plan = self.plan
        arguments = [*plan.arguments, "--listen", self._take(name, plan.first_address)]
        if plan.first_metrics_address is not None:
            address = self._take(f"{name}'s metrics", plan.first_metrics_address)
            arguments += ["--metrics", address]
        child = await ChildProcess.start(name, arguments, self.on_line, self._environment(index))
        self.children[name] = child
        return child

    def _take(self, name: str, first: str) -> str:
        """A free address for this start; nobody else's."""
        others = {address for other, address in self._addresses.items() if other != name}
        address = free_address(first, taken=others.union(self.plan.reserved))
        self._addresses[name] = address
        return address

    def _environment(self, index: int) -> Mapping[str, str]:
        devices = self.plan.devices
        return {_VISIBLE_DEVICES: devices[index % len(devices)]} if devices else {}


async def stop_children(children: Iterable[ChildProcess], grace_seconds: float) -> None:
    """Asks all to end, and kills those that have not when `grace_seconds` are over."""
    async with asyncio.TaskGroup() as stops:
        for child in children:
            stops.create_task(child.stop(grace_seconds))


def end_of(child: ChildProcess, code: int) -> LaunchError:
    """Why the launch is over, in the child's own words if it had any."""
    if child.last_error:
        return LaunchError(problem=f"{child.name}: {child.last_error}")
    return LaunchError(
        problem=f"{child.name} {how_it_ended(code)}; its log, above, may say why "
        "(--log-level info shows more)"
    )


def how_it_ended(code: int) -> str:
    """An exit code, negative for a signal, in words."""
    if code == EXIT_ADDRESS_TAKEN:
        return "found its address taken"
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
