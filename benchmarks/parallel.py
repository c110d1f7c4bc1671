"""Tensor- and pipeline-parallel meshes beside `transformers.generate`, in one run.

The workload and the figures are those of `benchmarks.serving`. Every mesh is started, measured in
turns with Transformers, which stays loaded, and stopped before the next one. Each row has its own
reference, so that the ratio does not depend on the machine's load at other times.
"""

import argparse
import asyncio
from functools import partial
from itertools import product

from rich.console import Console
from rich.table import Table

from benchmarks import command
from benchmarks.command import threads, whole
from benchmarks.mesh import UNCACHED, running_mesh
from benchmarks.reference import TransformersProcess
from benchmarks.serving import identical, in_turns, infer_batch, summarize, workload
from runtime.checkpoints.model_store import resolve_model
from stagemesh import AsyncClient
from stagemesh.cli.options.common import DeviceOptions, PlanOptions
from stagemesh.display.render import compact_table, output_console

COLUMNS = (
    "tp",
    "pp",
    "batch",
    "output tok/s",
    "TTFT s",
    "TPOT ms",
    "transformers",
    "ratio",
    "same",
)


async def compare(options: argparse.Namespace, console: Console) -> Table:
    """Measures every combination and returns the table."""
    folder = resolve_model(options.model, progress=None)
    title = (
        f"{options.model}: output tokens/s, {options.threads} thread(s) a rank; "
        f"transformers with {options.reference_threads}"
    )
    table = compact_table(title, *COLUMNS, justify="right")
    with TransformersProcess(folder, options.reference_threads) as reference:
        for tp, pp in product(options.tp, options.pp):
            plan = PlanOptions(pp=pp, tp=(tp,), backend=options.backend)
            device = DeviceOptions(threads=options.threads)
            async with running_mesh(str(folder), plan, UNCACHED, device) as client:
                for batch in options.batch:
                    row = await _measure(client, reference, batch, options)
                    table.add_row(str(tp), str(pp), str(batch), *row)
            console.print(f"tp={tp} pp={pp} done", style="dim")
    return table


async def _measure(
    client: AsyncClient, reference: TransformersProcess, batch: int, options: argparse.Namespace
) -> tuple[str, ...]:
    runs, reference_runs = await in_turns(
        options.repeats,
        partial(infer_batch, client, batch, options.tokens),
        partial(reference.generate, workload(batch), options.tokens),
    )
    ours, theirs = (summarize(each, options.tokens) for each in (runs, reference_runs))
    same, total = identical(runs, reference_runs)
    return (
        f"{ours.tokens_per_second:.1f}",
        f"{ours.ttft_seconds:.2f}",
        f"{ours.tpot_seconds * 1e3:.1f}",
        f"{theirs.tokens_per_second:.1f}",
        f"{ours.tokens_per_second / theirs.tokens_per_second:.2f}",
        f"{same}/{total}",
    )


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = command.make_parser(
        "parallel", __doc__, "about five minutes a combination", "", "--tp 1 --pp 2 --batch 1"
    )
    add = parser.add_argument
    add("--model", default="smollm2", help=command.MODEL_HELP)
    add("--tp", type=whole(), nargs="+", default=[1, 2], help="ranks of each stage")
    add("--pp", type=whole(), nargs="+", default=[1, 2, 3], help="stages")
    add("--backend", choices=command.BACKENDS, default="auto", help="of the ranks")
    add("--threads", type=threads, default=1, help="compute threads a rank")
    add("--reference-threads", type=threads, default=2, help="for transformers")
    add("--batch", type=whole(), nargs="+", default=[1, 8, 32], help="batch sizes")
    add("--tokens", type=whole(), default=64, help="new tokens per prompt")
    add("--repeats", type=whole(), default=2, help="runs per batch and system")
    return parser


def main() -> None:
    """Parses the options, runs, prints the table."""
    chosen, console = make_parser().parse_args(), output_console()
    command.run(lambda: console.print(asyncio.run(compare(chosen, console))))


if __name__ == "__main__":
    main()
