"""Measures the pause of running requests after a worker's death.

A mesh of two stages with one spare worker, on this machine. Requests decode; a worker in use is
killed with SIGKILL; the pause lasts from the kill to the next token of each request. Then a new
process replaces the killed worker, and the next round begins.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import psutil

from benchmarks import command
from benchmarks.command import whole
from runtime.backoff import Backoff
from runtime.host.logs import configure_logging
from stagemesh import AsyncClient, GenerationRequest, TokenIds
from stagemesh.cli.options.common import (
    AddressOptions,
    DeviceOptions,
    LogOptions,
    PlanOptions,
)
from stagemesh.cli.options.launching import MeshOptions, make_launch_plan
from stagemesh.client.state import MeshState
from stagemesh.launcher.launcher import local_mesh
from stagemesh.launcher.worker_supervisor import RestartPolicy

_BEGUN_TOKENS = 8


@asynccontextmanager
async def mesh_with_standby(model: str, num_kills: int) -> AsyncIterator[AsyncClient]:
    """Starts a mesh of two stages and three workers, which replaces dead ones; yields a client."""
    addresses = AddressOptions(grpc="127.0.0.1:0", http="127.0.0.1:0", mesh="127.0.0.1:0")
    mesh_options = MeshOptions(PlanOptions(pp=2), addresses=addresses)
    logs = LogOptions(log_level="error")
    plan = make_launch_plan(model, mesh_options, DeviceOptions(threads=1), logs)
    plan = replace(plan, workers=replace(plan.workers, num_workers=3))
    backoff = Backoff(0.1, 30.0)
    restarts = RestartPolicy(max_restarts=num_kills, backoff=backoff, healthy_seconds=0.0)
    async with local_mesh(plan, lambda line: print(line, file=sys.stderr), restarts) as mesh:
        await mesh.wait_until_ready(lambda state: None)
        async with AsyncClient(plan.target) as client:
            yield client


async def measure_kill(client: AsyncClient, number: int, num_requests: int) -> list[float]:
    """Kills a worker; returns the seconds to the next token of each running request."""
    killed_at: list[float] = []
    begun = [asyncio.Event() for _ in range(num_requests)]

    async def pause_of(index: int) -> float:
        request = GenerationRequest(
            prompts=(TokenIds((5 + index, 6, 7)),), max_tokens=2000, ignore_eos=True
        )
        num_tokens = 0
        async for update in client.infer(request):
            now = time.monotonic()
            num_tokens += len(update.tokens)
            if num_tokens >= _BEGUN_TOKENS:
                begun[index].set()
            # What was on its way at the kill comes at once, and is not counted.
            if killed_at and now - killed_at[0] > 0.05:
                return now - killed_at[0]
        raise AssertionError("the answer ended before the mesh recovered")

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(pause_of(index)) for index in range(num_requests)]
        for event in begun:
            await event.wait()
        state = await client.state()
        killed_at.append(time.monotonic())
        psutil.Process(_used_pid(state, number % 2)).kill()
    return [task.result() for task in running]


async def until_whole(client: AsyncClient) -> None:
    """Waits until the mesh serves and has a spare worker."""
    while True:
        state = await client.state()
        if state.ready and len(state.workers) == 3:
            return
        await asyncio.sleep(0.1)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _used_pid(state: MeshState, stage: int) -> int:
    worker_id = state.replicas[0].stages[stage].worker_ids[0]
    return next(worker.pid for worker in state.workers if worker.worker_id == worker_id)


async def _main(options: argparse.Namespace) -> None:
    pauses: list[float] = []
    async with mesh_with_standby(options.model, options.kills) as client:
        for number in range(options.kills):
            await until_whole(client)
            pauses += await measure_kill(client, number, options.requests)
    print(f"{options.model}, 2 stages and a spare worker, {options.kills} kills, stages in turn,")
    print(f"{options.requests} requests decoding: from the kill to each request's next token")
    print("| p50 (s) | p99 (s) | worst (s) |\n| --- | --- | --- |")
    print(f"| {percentile(pauses, 0.5):.2f} | {percentile(pauses, 0.99):.2f} | {max(pauses):.2f} |")


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = command.make_parser(
        "recovery", __doc__, "about two minutes", "", "--kills 2 --requests 1"
    )
    add = parser.add_argument
    add("--model", default="smollm2", help=command.MODEL_HELP)
    add("--kills", type=whole(most=1000), default=10, help="of either stage in turn")
    add("--requests", type=whole(most=64), default=4, help="that decode at each kill")
    return parser


def main() -> None:
    """Parses the options, runs, prints the table."""
    chosen = make_parser().parse_args()
    configure_logging("benchmark", "error", False)
    command.run(lambda: asyncio.run(_main(chosen)))


if __name__ == "__main__":
    main()
