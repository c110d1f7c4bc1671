"""Runs the workers of one machine as child processes, and restarts those that end or hang.

It never talks to a coordinator, and prints nothing: log lines go to a callback.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from runtime.backoff import Backoff
from runtime.errors import CertificateError, LaunchError
from runtime.rpc.channels import ChannelTls
from runtime.rpc.tls import MeshTls, Role
from stagemesh.launcher.child_process import EXIT_ADDRESS_TAKEN, EXIT_FAILED, ChildProcess, LineFn
from stagemesh.launcher.liveness import wait_until_unresponsive
from stagemesh.launcher.ports import dialable, free_address

_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a worker that exited is restarted, and when its supervisor gives up.

    An exit within `healthy_seconds` of the start is early. Consecutive early exits increase the
    delay, whatever their exit code; only exits with a code other than 0 count towards
    `max_restarts`.
    """

    max_restarts: int = 5
    backoff: Backoff = Backoff(first_seconds=0.5, max_seconds=30.0)
    healthy_seconds: float = 60.0

    def delay_seconds(self, num_early_exits: int) -> float:
        """The delay before the restart after this number of consecutive early exits."""
        return self.backoff.pause_seconds(num_early_exits - 1) if num_early_exits else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLaunchPlan:
    """Which workers to start.

    `arguments` are those of `stagemesh`, except the addresses, which each start chooses: the first
    free ports from those of `first_address` and `first_metrics_address` upwards. Workers are
    assigned round-robin to `devices`, names in CUDA_VISIBLE_DEVICES; without names they see the
    devices of this process. `tls` authenticates health checks. `kills_unresponsive` kills workers
    that stop answering health checks. The ports of `reserved` are never chosen: their owners may
    not listen yet.
    """

    arguments: tuple[str, ...]
    num_workers: int
    first_address: str
    first_metrics_address: str | None = None
    devices: tuple[str, ...] = ()
    tls: MeshTls | None = None
    kills_unresponsive: bool = False
    reserved: tuple[str, ...] = ()


@dataclass(slots=True)
class WorkerSupervisor:
    """The running workers; `children` are by name, and may include processes of other owners."""

    plan: WorkerLaunchPlan
    on_line: LineFn
    restarts: RestartPolicy
    children: dict[str, ChildProcess] = field(default_factory=dict)
    _addresses: dict[str, str] = field(default_factory=dict)

    def start_all(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[NoReturn]]:
        """Starts a task per worker; a task ends with `LaunchError` or by cancellation."""
        return [tasks.create_task(self._supervise(index)) for index in range(self.plan.num_workers)]

    async def run(self, grace_seconds: float) -> NoReturn:
        """Runs until cancelled, then stops all workers; LaunchError if one cannot be kept up."""
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
        """The address at which this machine reaches a started worker."""
        return dialable(self._addresses[name])

    def kill(self) -> None:
        """Sends SIGKILL to every worker."""
        for child in self.children.values():
            child.kill()

    async def _supervise(self, index: int) -> NoReturn:
        """Keeps one worker running; LaunchError after a reported error or too many restarts."""
        name, clock = f"worker {index}", asyncio.get_running_loop().time
        num_early_exits = num_failures = 0
        while True:
            started = clock()
            tls = self._tls()
            child = await self._start(name, index)
            code = await self._follow(child, tls)
            if clock() - started > self.restarts.healthy_seconds:
                num_early_exits = num_failures = 0
            else:
                num_early_exits += 1
            num_failures += code != 0
            if code == EXIT_FAILED or num_failures > self.restarts.max_restarts:
                raise launch_error(child, code)
            # A failure causes a delay even after a long healthy time.
            delay_seconds = self.restarts.delay_seconds(max(num_early_exits, int(code != 0)))
            reason = exit_reason(code) if code else "was drained"
            self.on_line(f"{name} {reason}; restarting it in {delay_seconds:.1f} s")
            await asyncio.sleep(delay_seconds)

    def _tls(self) -> ChannelTls | None:
        """Credentials for a new worker's health checks; LaunchError if they cannot be loaded."""
        try:
            return self.plan.tls.credentials_for(Role.WORKER) if self.plan.tls else None
        except CertificateError as error:
            raise LaunchError(problem=str(error)) from error

    async def _follow(self, child: ChildProcess, tls: ChannelTls | None) -> int:
        """Waits for the child's exit and returns its code; kills it if it becomes unresponsive."""
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self._kill_unresponsive(child, tls))
            code = await child.follow()
            watch.cancel()
        return code

    async def _kill_unresponsive(self, child: ChildProcess, tls: ChannelTls | None) -> None:
        if not self.plan.kills_unresponsive:
            return
        await wait_until_unresponsive(self.address_of(child.name), tls)
        self.on_line(f"{child.name} no longer responds: killed")
        child.kill()

    async def _start(self, name: str, index: int) -> ChildProcess:
        plan = self.plan
        arguments = [*plan.arguments, "--listen", self._choose_address(name, plan.first_address)]
        if plan.first_metrics_address is not None:
            address = self._choose_address(f"{name}'s metrics", plan.first_metrics_address)
            arguments += ["--metrics", address]
        child = await ChildProcess.start(name, arguments, self.on_line, self._environment(index))
        self.children[name] = child
        return child

    def _choose_address(self, name: str, first: str) -> str:
        """Chooses a free address, and records it so that no other worker gets it."""
        others = {address for other, address in self._addresses.items() if other != name}
        address = free_address(first, taken=others.union(self.plan.reserved))
        self._addresses[name] = address
        return address

    def _environment(self, index: int) -> Mapping[str, str]:
        devices = self.plan.devices
        return {_VISIBLE_DEVICES: devices[index % len(devices)]} if devices else {}


async def stop_children(children: Iterable[ChildProcess], grace_seconds: float) -> None:
    """Stops all children at the same time; kills those that run after `grace_seconds`."""
    async with asyncio.TaskGroup() as stops:
        for child in children:
            stops.create_task(child.stop(grace_seconds))


def launch_error(child: ChildProcess, code: int) -> LaunchError:
    """The error for a child's exit: with the error that it printed, or else its exit code."""
    if child.last_error:
        return LaunchError(problem=f"{child.name}: {child.last_error}")
    return LaunchError(
        problem=f"{child.name} {exit_reason(code)}; see its log above for the reason "
        "(--log-level info shows more)"
    )


def exit_reason(code: int) -> str:
    """Describes an exit code, which is negative for a signal."""
    if code == EXIT_ADDRESS_TAKEN:
        return "found its address in use"
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
