"""Tensor- and pipeline-parallel meshes beside `transformers.generate`, in one run.

The workload and the figures are those of `benchmarks.serving`. Every mesh is started, measured in
turns with Transformers, which stays loaded all the time, and stopped before the next one. Each row
has its own reference, so that the ratio does not depend on what else the machine did at other
times.
"""

import argparse
import asyncio
from functools import partial
from itertools import product

from rich.console import Console
from rich.table import Table

from benchmarks.mesh import UNCACHED, running_mesh
from benchmarks.reference import TransformersProcess
from benchmarks.serving import identical, in_turns, infer_batch, summarize, workload
from runtime.model_store import resolve_model
from stagemesh import AsyncClient
from stagemesh.cli.options import DeviceOptions, PlanOptions
from stagemesh.render import compact_table

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


def main() -> None:
    """Parses the options, runs, prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="as in `stagemesh serve`")
    parser.add_argument("--tp", type=int, nargs="+", default=[1, 2], help="ranks of each stage")
    parser.add_argument("--pp", type=int, nargs="+", default=[1, 2, 3], help="stages")
    parser.add_argument("--backend", default="auto", help="as in `stagemesh serve`")
    parser.add_argument("--threads", type=int, default=1, help="compute threads a rank")
    parser.add_argument("--reference-threads", type=int, default=2, help="for transformers")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32], help="batch sizes")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per prompt")
    parser.add_argument("--repeats", type=int, default=2, help="runs per batch and system")
    options = parser.parse_args()
    console = Console()
    console.print(asyncio.run(compare(options, console)))


if __name__ == "__main__":
    main()
