"""Owns the demonstration: a mesh of separate processes, one streamed answer, and what it cost.

It runs on free ports, so that it disturbs no mesh that runs, and leaves nothing behind.
"""

from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.text import Text

from runtime.protocol.inference_types import Chat, ChatMessage, GenerationRequest, Update
from stagemesh.client.async_client import AsyncClient
from stagemesh.client.state import MeshState, ReplicaState
from stagemesh.display.progress import ProgressView, tell
from stagemesh.display.render import hop_table, plan_table, speed, stage_table
from stagemesh.launcher.launcher import LaunchPlan, LocalMesh, local_mesh
from stagemesh.launcher.signals import Interrupts

TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Demo:
    """What to start and what to ask it; the answer goes to `console`, news to `news`."""

    plan: LaunchPlan
    prompt: str
    max_tokens: int
    console: Console
    news: Console

    async def run(self, interrupts: Interrupts) -> None:
        """Starts the mesh, asks, shows the tables and stops it; LaunchError if it cannot start."""
        async with local_mesh(self.plan, partial(tell, self.news)) as mesh:
            interrupts.on_first = partial(tell, self.news, "\nstopping")
            interrupts.on_second = mesh.kill
            before = await self._start(mesh)
            async with AsyncClient(self.plan.target) as client:
                last = await self._ask(client)
                self._show_cost(before, await client.state(), last)
        tell(self.news, "stopped")

    async def _start(self, mesh: LocalMesh) -> MeshState:
        with ProgressView(self.news) as progress:
            state = await mesh.wait_until_ready(progress.show_state)
        self.console.print(plan_table(state))
        return state

    async def _ask(self, client: AsyncClient) -> Update | None:
        """Streams the answer; returns its last update."""
        self.console.print(Text.assemble(("\nuser: ", "bold"), self.prompt))
        self.console.print(Text("assistant: ", style="bold"), end="")
        message = Chat((ChatMessage("user", self.prompt),))
        request = GenerationRequest(prompts=(message,), max_tokens=self.max_tokens)
        last = None
        async for last in client.infer(request, timeout_seconds=TIMEOUT_SECONDS):
            self.console.file.write(last.text)
            self.console.file.flush()
        self.console.print("\n")
        return last

    def _show_cost(self, before: MeshState, after: MeshState, last: Update | None) -> None:
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
