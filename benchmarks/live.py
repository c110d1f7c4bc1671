"""Batching policies on running meshes; each COMMAND has its own --help.

`policies`, `simulator` and `recovery` use simulated workers (docs/scheduling.md): real
processes and streams, modelled compute, so that four stages fit two cores. `smollm2` computes.
"""

import argparse
import asyncio
import json
import tempfile
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks import command
from benchmarks.live_load import LoadFigures, measure, simulated
from benchmarks.live_options import EXAMPLES, TAKES, add_options
from benchmarks.live_recovery import (
    decode_for,
    find_recovery,
    recovery_cells,
    simulate_decodes,
)
from benchmarks.mesh import UNCACHED, running_mesh
from benchmarks.serving import batch_cells, infer_batch
from runtime.errors import InvalidRequestError
from scheduler import PolicyName
from simulator.model.pacing import read_pace
from simulator.workload.scenarios import make_scenarios
from simulator.workload.traces import Trace, fit
from stagemesh import AsyncClient
from stagemesh.cli.options.common import BatchingOptions, DeviceOptions, PlanOptions
from stagemesh.display.render import compact_table, output_console

if TYPE_CHECKING:
    from benchmarks.reference import BatchRun

SLOWED_STAGE = 1
MAX_MODEL_LEN = 8192
START_SECONDS = 0.3
"""Seconds from the canary to the first request; changes count from the canary's step."""


async def policies(options: argparse.Namespace, console: Console) -> None:
    """Every policy under the same recorded load; one stage is slowed down in the middle."""
    trace = make_trace(options)
    changed_at = trace[-1].arrival / 2
    with tempfile.TemporaryDirectory() as folder:
        path = with_slow_stage(options.paced, Path(folder), changed_at + START_SECONDS)
        table = figures_table(
            f"{len(trace)} requests of the Azure code trace at {options.rate:g}/s, "
            f"stage {SLOWED_STAGE} twice as slow from {changed_at:.0f} s on"
        )
        for policy in options.policies:
            live = await run_paced(path, options.layers, policy, trace)
            add_figures(table, policy, live)
    console.print(table)


async def simulator(options: argparse.Namespace, console: Console) -> None:
    """The simulator against the mesh: the same trace, stages, limits and scheduler."""
    trace, pace = make_trace(options), read_pace(options.paced)
    table = figures_table(f"{len(trace)} requests of the Azure code trace at {options.rate:g}/s")
    for policy in options.policies:
        live = await run_paced(options.paced, options.layers, policy, trace)
        modelled = simulated(pace, options.layers, policy, trace)
        add_figures(table, f"{policy}, live", live)
        add_figures(table, f"{policy}, simulated", modelled)
        add_difference(table, modelled, live)
    console.print(table)


async def recovery(options: argparse.Namespace, console: Console) -> None:
    """Decodes only: cycles from a stage's slowdown until the rate reaches its new maximum."""
    pace = read_pace(options.paced)
    if not pace.changes:
        problem = f"{options.paced} has no stage that slows down; see docs/scheduling.md on changes"
        raise InvalidRequestError(field="--paced", problem=problem)
    changed_at = pace.changes[0].at_seconds - START_SECONDS
    table = compact_table(
        f"{options.sequences} decodes, stage {pace.changes[0].stage} "
        f"{pace.changes[0].factor:g} times as slow after {changed_at:.0f} s",
        *("policy", "tokens/s before", "tokens/s after", "back at 95% after cycles", "seconds"),
        "resets",
    )
    for policy in options.policies:
        async with paced_mesh(options.paced, options.layers, policy) as client:
            times = await decode_for(client, options.sequences, changed_at + options.seconds)
            state = (await client.state()).replicas[0].scheduler
        live = find_recovery(times, changed_at)
        num_resets = sum(stage.num_resets for stage in state.stages)
        table.add_row(policy, *recovery_cells(live), str(num_resets))
        modelled, policy_snapshot = simulate_decodes(
            pace, options.layers, policy, options.sequences, len(times[0])
        )
        found = find_recovery(modelled, pace.changes[0].at_seconds)
        num_resets = sum(stage.num_resets for stage in policy_snapshot.stages)
        table.add_row("  simulated", *recovery_cells(found), str(num_resets))
    console.print(table)


async def smollm2(options: argparse.Namespace, console: Console) -> None:
    """The bundled model in two computing stages, policies measured in turns; medians."""
    table = compact_table(
        f"SmolLM2, 128 prompt tokens, {options.tokens} new ones, pp={options.pp}, "
        f"{options.repeats} repeats",
        *("policy", "batch", "tokens/s", "lowest - highest", "TTFT s", "TPOT ms"),
    )
    async with AsyncExitStack() as meshes:
        clients = {
            policy: await meshes.enter_async_context(
                running_mesh(
                    "smollm2",
                    PlanOptions(pp=options.pp),
                    replace(UNCACHED, policy=policy),
                    DeviceOptions(threads=options.threads),
                )
            )
            for policy in options.policies
        }
        for client in clients.values():
            await infer_batch(client, 8, 16)
        for batch in options.batches:
            runs: dict[PolicyName, list[BatchRun]] = {policy: [] for policy in clients}
            for _ in range(options.repeats):
                for policy, client in clients.items():
                    runs[policy].append(await infer_batch(client, batch, options.tokens))
            for policy in clients:
                table.add_row(policy, str(batch), *batch_cells(runs[policy], options.tokens))
    console.print(table)


def make_trace(options: argparse.Namespace) -> Trace:
    """A recorded trace at a rate of requests, truncated to the bundled model's context."""
    trace = make_scenarios()["azure-code"].make_trace(options.requests, options.rate, options.seed)
    return fit(trace, MAX_MODEL_LEN)


def with_slow_stage(paced: Path, folder: Path, after_seconds: float) -> Path:
    """The same file, with one stage that takes twice as long after a while."""
    change = {"stage": SLOWED_STAGE, "after_seconds": after_seconds, "factor": 2.0}
    path = folder / paced.name
    path.write_text(json.dumps(json.loads(paced.read_text()) | {"changes": [change]}))
    return path


def paced_mesh(
    paced: Path, layers: tuple[int, ...], policy: PolicyName
) -> AbstractAsyncContextManager[AsyncClient]:
    """Starts a mesh of simulated workers with one policy."""
    return running_mesh(
        "smollm2",
        PlanOptions(layers=layers),
        BatchingOptions(policy=policy),
        DeviceOptions(threads=1, paced=paced),
    )


async def run_paced(
    paced: Path, layers: tuple[int, ...], policy: PolicyName, trace: Trace
) -> LoadFigures:
    """Replays a trace on a mesh of simulated workers."""
    async with paced_mesh(paced, layers, policy) as client:
        return await measure(client, trace)


def figures_table(title: str) -> Table:
    """Makes the table whose rows `add_figures` adds."""
    return compact_table(
        title,
        *("policy", "tokens/s", "TTFT p50 s", "TTFT p90 s", "TPOT p50 ms", "TPOT p90 ms", "bubble"),
    )


def add_figures(table: Table, name: str, figures: LoadFigures) -> None:
    """One row."""
    table.add_row(
        name,
        f"{figures.token_rate:.1f}",
        f"{figures.ttft.p50:.2f}",
        f"{figures.ttft.p90:.2f}",
        f"{1000 * figures.tpot.p50:.0f}",
        f"{1000 * figures.tpot.p90:.0f}",
        f"{figures.bubble:.0%}",
    )


def add_difference(table: Table, modelled: LoadFigures, live: LoadFigures) -> None:
    """The simulator's deviation from the measured mesh."""
    pairs = (
        (modelled.token_rate, live.token_rate),
        (modelled.ttft.p50, live.ttft.p50),
        (modelled.ttft.p90, live.ttft.p90),
        (modelled.tpot.p50, live.tpot.p50),
        (modelled.tpot.p90, live.tpot.p90),
    )
    table.add_row("  off by", *(f"{there / here - 1:+.1%}" for there, here in pairs), "")


def make_parser() -> argparse.ArgumentParser:
    """The command line, with a parser for each command."""
    parser = command.make_parser(
        "live", __doc__, "6 to 10 minutes each", "policies --policies fixed,adaptive", "smollm2"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for work in (policies, simulator, recovery, smollm2):
        name = work.__name__
        sub = commands.add_parser(
            name,
            help=work.__doc__,
            description=work.__doc__,
            epilog=command.epilog("live", TAKES[name], name, f"{name} {EXAMPLES[name]}"),
            formatter_class=command.HelpFormatter,
        )
        sub.set_defaults(command=work)
        add_options(sub, name)
    return parser


def main() -> None:
    """Runs one command and prints its table."""
    chosen = make_parser().parse_args()
    command.run(lambda: asyncio.run(chosen.command(chosen, output_console())))


if __name__ == "__main__":
    main()
