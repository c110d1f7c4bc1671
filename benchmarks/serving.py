"""Serving throughput of a local mesh beside `transformers.generate`, taken in turns in one run.

Workload: prompt i = [1] + [(100 + 37*i + 13*j) % 40000 for j in 0..126], 64 new tokens, greedy,
end-of-sequence ignored. Output tokens/s count the whole batch's wall time, prefill included. TTFT
is from sending to the first token, TPOT the mean gap between later tokens of one sequence. Both
sides stay loaded for the whole run and idle while the other works; figures are medians.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from rich.console import Console
from rich.table import Table

from benchmarks import command
from benchmarks.command import checked, threads, whole
from benchmarks.mesh import UNCACHED, running_mesh
from benchmarks.reference import BatchRun, TransformersProcess
from runtime.checkpoints.model_store import resolve_model
from stagemesh import AsyncClient, GenerationRequest, TokenIds
from stagemesh.cli.options.common import DeviceOptions, PlanOptions
from stagemesh.display.render import compact_table, output_console
from stagemesh.units import parse_layers

PROMPT_TOKENS = 128


def workload(batch: int) -> list[list[int]]:
    """The prompts of one batch, 128 token ids each."""
    return [
        [1] + [(100 + 37 * i + 13 * j) % 40000 for j in range(PROMPT_TOKENS - 1)]
        for i in range(batch)
    ]


async def infer_batch(client: AsyncClient, batch: int, num_tokens: int) -> BatchRun:
    """Sends every prompt of a batch as its own request, all at once."""
    started = time.perf_counter()

    async def one(prompt: list[int]) -> tuple[tuple[int, ...], float, float]:
        request = GenerationRequest(
            prompts=(TokenIds(tuple(prompt)),), max_tokens=num_tokens, ignore_eos=True
        )
        ids: list[int] = []
        first = 0.0
        async for update in client.infer(request):
            if update.tokens and not ids:
                first = time.perf_counter() - started
            ids.extend(token.id for token in update.tokens)
        return tuple(ids), first, time.perf_counter() - started

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(prompt)) for prompt in workload(batch)]
    wall_seconds = time.perf_counter() - started
    ids, first, total = zip(*(task.result() for task in tasks), strict=True)
    return BatchRun(ids, first, total, wall_seconds)


@dataclass(frozen=True, slots=True)
class ServingFigures:
    """Medians over the repeats of one batch size on one system."""

    tokens_per_second: float
    ttft_seconds: float
    tpot_seconds: float


def summarize(runs: list[BatchRun], num_tokens: int) -> ServingFigures:
    """Median throughput; median over all sequences of TTFT and TPOT."""
    gaps = max(num_tokens - 1, 1)
    ttfts = [ttft for run in runs for ttft in run.first_token_seconds]
    tpots = [
        (total - first) / gaps
        for run in runs
        for first, total in zip(run.first_token_seconds, run.total_seconds, strict=True)
    ]
    rates = [len(run.token_ids) * num_tokens / run.wall_seconds for run in runs]
    return ServingFigures(
        statistics.median(rates), statistics.median(ttfts), statistics.median(tpots)
    )


def batch_cells(runs: list[BatchRun], num_tokens: int) -> tuple[str, ...]:
    """Median, lowest and highest rate, and medians of TTFT and TPOT."""
    figures = summarize(runs, num_tokens)
    rates = [len(run.token_ids) * num_tokens / run.wall_seconds for run in runs]
    return (
        f"{figures.tokens_per_second:.1f}",
        f"{min(rates):.1f} - {max(rates):.1f}",
        f"{figures.ttft_seconds:.2f}",
        f"{1000 * figures.tpot_seconds:.1f}",
    )


def identical(ours: list[BatchRun], theirs: list[BatchRun]) -> tuple[int, int]:
    """Counts sequences with equal tokens, and all compared (first repeat of each system)."""
    pairs = list(zip(ours[0].token_ids, theirs[0].token_ids, strict=True))
    return sum(a == b for a, b in pairs), len(pairs)


async def compare(options: argparse.Namespace, console: Console) -> Table:
    """Runs both systems in turns and returns the table."""
    folder = resolve_model(options.model, progress=None)
    title = f"{options.model}: mesh pp={options.pp} beside transformers.generate"
    names = ("batch", "system", "output tok/s", "TTFT s", "TPOT ms", "ratio", "same tokens")
    table = compact_table(title, *names, justify="right")
    table.columns[1].justify = "left"
    with TransformersProcess(folder, options.reference_threads) as reference:
        plan = PlanOptions(pp=options.pp, layers=options.layers)
        batching = replace(UNCACHED, steps_in_flight=options.steps_in_flight)
        device = DeviceOptions(threads=options.threads)
        async with running_mesh(str(folder), plan, batching, device) as client:
            for batch in options.batch:
                mesh_runs, reference_runs = await in_turns(
                    options.repeats,
                    partial(infer_batch, client, batch, options.tokens),
                    partial(reference.generate, workload(batch), options.tokens),
                )
                _add_rows(table, batch, mesh_runs, reference_runs, options)
                console.print(f"batch {batch} done", style="dim")
    return table


async def in_turns(
    repeats: int,
    ours: Callable[[], Awaitable[BatchRun]],
    theirs: Callable[[], BatchRun],
) -> tuple[list[BatchRun], list[BatchRun]]:
    """Runs of both sides, one of each at a time."""
    our_runs, their_runs = [], []
    for _ in range(repeats):
        our_runs.append(await ours())
        their_runs.append(await asyncio.to_thread(theirs))
    return our_runs, their_runs


def _add_rows(
    table: Table,
    batch: int,
    mesh_runs: list[BatchRun],
    reference_runs: list[BatchRun],
    options: argparse.Namespace,
) -> None:
    ours, theirs = (summarize(runs, options.tokens) for runs in (mesh_runs, reference_runs))
    same, total = identical(mesh_runs, reference_runs)
    ratio = ours.tokens_per_second / theirs.tokens_per_second
    names = (
        f"stagemesh pp={options.pp}, {options.threads} thread(s) a stage",
        f"transformers, {options.reference_threads} threads",
    )
    for name, figures, tail in (
        (names[0], ours, (f"{ratio:.2f}", f"{same}/{total}")),
        (names[1], theirs, ("1.00", "")),
    ):
        table.add_row(
            str(batch),
            name,
            f"{figures.tokens_per_second:.1f}",
            f"{figures.ttft_seconds:.2f}",
            f"{figures.tpot_seconds * 1e3:.1f}",
            *tail,
        )


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = command.make_parser(
        "serving", __doc__, "about five minutes", "--repeats 2", "--batch 1 --tokens 16 --repeats 1"
    )
    add = parser.add_argument
    add("--model", default="smollm2", help=command.MODEL_HELP)
    add("--pp", type=whole(), help="stages (default: 2, or as many as --layers names)")
    add("--layers", type=checked(parse_layers), help="of each stage, as 18,12 (default: balanced)")
    add(
        "--threads",
        type=threads,
        default=1,
        help="compute threads a stage",
    )
    add("--steps-in-flight", type=whole(), help="microbatches (default: the mesh's)")
    add("--reference-threads", type=threads, default=2, help="for transformers")
    add("--batch", type=whole(), nargs="+", default=[1, 8, 32], help="batch sizes")
    add("--tokens", type=whole(), default=64, help="new tokens per prompt")
    add("--repeats", type=whole(), default=3, help="runs per batch and system")
    return parser


def main() -> None:
    """Parses the options, runs, prints the table."""
    parser = make_parser()
    chosen, console = parser.parse_args(), output_console()
    num_stages = len(chosen.layers or ()) or 2
    chosen.pp = chosen.pp or num_stages
    if chosen.layers and chosen.pp != num_stages:
        parser.error(f"--pp {chosen.pp} does not match --layers, which names {num_stages} stages")
    command.run(lambda: console.print(asyncio.run(compare(chosen, console))))


if __name__ == "__main__":
    main()
