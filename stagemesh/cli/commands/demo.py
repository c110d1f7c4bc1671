"""Implements `stagemesh demo`: one streamed answer from a temporary mesh, and its costs."""

from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.text import Text

from runtime.protocol.inference_types import Chat, ChatMessage, GenerationRequest, Update
from stagemesh.cli.options.common import (
    DEVICE_DEFAULTS,
    LOG_DEFAULTS,
    AddressOptions,
    DeviceOptions,
    LogOptions,
    PlanOptions,
)
from stagemesh.cli.options.launching import (
    MeshOptions,
    check_options,
    coordinator_options,
    make_launch_plan,
)
from stagemesh.cli.options.option_types import Positive
from stagemesh.client.async_client import AsyncClient
from stagemesh.client.state import MeshState, ReplicaState
from stagemesh.display.progress import ProgressView, print_line
from stagemesh.display.render import hop_table, plan_table, speed, stage_table
from stagemesh.launcher.launcher import LaunchPlan, LocalMesh, local_mesh
from stagemesh.launcher.signals import Interrupts, run_interruptible

_FREE_ADDRESSES = AddressOptions(grpc="127.0.0.1:0", http="127.0.0.1:0", mesh="127.0.0.1:0")
_TIMEOUT_SECONDS = 120.0


def demo(
    *,
    model: str = "smollm2",
    prompt: str = "Give me three tips for staying healthy.",
    pp: Positive = 2,
    max_tokens: Positive = 128,
    device: DeviceOptions = DEVICE_DEFAULTS,
    logs: LogOptions = LOG_DEFAULTS,
) -> None:
    """Start a mesh, stream one answer, show where the time went, and stop the mesh.

    Uses free ports, so that it does not affect a running mesh.

    Parameters
    ----------
    model
        A folder in Hugging Face layout, a .gguf file, a Hub id such as org/name, or smollm2.
    prompt
        Text of the prompt.
    pp
        Number of pipeline stages, one worker each.
    max_tokens
        Most tokens of the answer.
    """
    log = Console(stderr=True)
    mesh = MeshOptions(PlanOptions(pp=pp), addresses=_FREE_ADDRESSES)
    launch_plan = make_launch_plan(model, mesh, device, logs)
    with ProgressView(log) as progress:
        check_options(coordinator_options(model, mesh), progress)
    run_interruptible(_Demo(launch_plan, prompt, max_tokens, Console(), log).run)


@dataclass(frozen=True, slots=True)
class _Demo:
    """One demonstration run; the answer and tables go to `console`, progress to `log`."""

    plan: LaunchPlan
    prompt: str
    max_tokens: int
    console: Console
    log: Console

    async def run(self, interrupts: Interrupts) -> None:
        """Starts the mesh, streams an answer, prints the tables and stops the mesh."""
        async with local_mesh(self.plan, partial(print_line, self.log)) as mesh:
            interrupts.on_first = partial(print_line, self.log, "\nstopping")
            interrupts.on_second = mesh.kill
            before = await self._start(mesh)
            async with AsyncClient(self.plan.target) as client:
                last = await self._stream_answer(client)
                self._print_costs(before, await client.state(), last)
        print_line(self.log, "stopped")

    async def _start(self, mesh: LocalMesh) -> MeshState:
        with ProgressView(self.log) as progress:
            state = await mesh.wait_until_ready(progress.show_state)
        self.console.print(plan_table(state))
        return state

    async def _stream_answer(self, client: AsyncClient) -> Update | None:
        """Streams the answer; returns its last update."""
        self.console.print(Text.assemble(("\nuser: ", "bold"), self.prompt))
        self.console.print(Text("assistant: ", style="bold"), end="")
        message = Chat((ChatMessage("user", self.prompt),))
        request = GenerationRequest(prompts=(message,), max_tokens=self.max_tokens)
        last = None
        async for last in client.infer(request, timeout_seconds=_TIMEOUT_SECONDS):
            self.console.file.write(last.text)
            self.console.file.flush()
        self.console.print("\n")
        return last

    def _print_costs(self, before: MeshState, after: MeshState, last: Update | None) -> None:
        replicas = _since(before, after)
        self.console.print(stage_table(replicas, "Stages, for this answer"))
        if any(len(replica.stages) > 1 for replica in replicas):
            self.console.print()
            self.console.print(hop_table(replicas, "Hops, for this answer"))
        if last is not None and last.usage is not None and last.timings is not None:
            self.console.print()
            self.console.print(Text(speed(last.usage, last.timings)), soft_wrap=True)


def _since(before: MeshState, after: MeshState) -> list[ReplicaState]:
    earlier = {replica.replica: replica for replica in before.replicas}
    return [
        replica.since(earlier[replica.replica]) if replica.replica in earlier else replica
        for replica in after.replicas
    ]
