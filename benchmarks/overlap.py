"""A mesh that receives, computes and sends at the same time beside one that takes turns.

The workload and the figures are those of `benchmarks.serving`. Both meshes stay loaded, and each
idles while the other works. "Sent" is what every stage's rank 0 sent to the next stage; "hidden" is
how much of the time of these sends the same stage spent computing another step.
"""

import argparse
import asyncio
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from benchmarks.mesh import UNCACHED, running_mesh
from benchmarks.reference import BatchRun
from benchmarks.serving import identical, infer_batch, summarize
from stagemesh import AsyncClient
from stagemesh.cli.options import DeviceOptions, PlanOptions
from stagemesh.render import compact_table
from stagemesh.state import StageState
from stagemesh.values import format_size, parse_ranks

COLUMNS = ("batch", "overlap", "output tok/s", "TTFT s", "TPOT ms", "sent", "hidden", "same tokens")


@dataclass(slots=True)
class _Side:
    """One of the two meshes, with what it has measured of one batch size."""

    client: AsyncClient
    runs: list[BatchRun] = field(default_factory=list)
    num_bytes: int = 0
    send_seconds: float = 0.0
    hidden_seconds: float = 0.0

    async def run(self, batch: int, num_tokens: int) -> None:
        """One more run."""
        before = await self._hops()
        self.runs.append(await infer_batch(self.client, batch, num_tokens))
        for was, now in zip(before, await self._hops(), strict=True):
            hop = now.since(was)
            self.num_bytes += hop.num_bytes_sent
            self.send_seconds += hop.send_seconds
            self.hidden_seconds += hop.send_hidden_seconds

    async def _hops(self) -> tuple[StageState, ...]:
        (replica,) = (await self.client.state()).replicas
        return replica.stages[:-1]


async def compare(options: argparse.Namespace, console: Console) -> Table:
    """Runs both meshes in turns and returns the table."""
    title = f"{options.model}: pp={options.pp} tp={options.tp}, {options.threads} thread(s) a rank"
    table = compact_table(title, *COLUMNS, justify="right")
    tp = parse_ranks(options.tp)
    on, off = PlanOptions(pp=options.pp, tp=tp), PlanOptions(pp=options.pp, tp=tp, overlap="off")
    device = DeviceOptions(threads=options.threads)
    async with (
        running_mesh(options.model, on, UNCACHED, device) as overlapped,
        running_mesh(options.model, off, UNCACHED, device) as sequential,
    ):
        for batch in options.batch:
            sides = {"on": _Side(overlapped), "off": _Side(sequential)}
            for _ in range(options.repeats):
                for side in sides.values():
                    await side.run(batch, options.tokens)
            for name, side in sides.items():
                same, total = identical(side.runs, sides["on"].runs)
                table.add_row(str(batch), name, *_figures(side, options), f"{same}/{total}")
            console.print(f"batch {batch} done", style="dim")
    return table


def _figures(side: _Side, options: argparse.Namespace) -> tuple[str, ...]:
    figures = summarize(side.runs, options.tokens)
    return (
        f"{figures.tokens_per_second:.1f}",
        f"{figures.ttft_seconds:.2f}",
        f"{figures.tpot_seconds * 1e3:.1f}",
        format_size(side.num_bytes / options.repeats),
        f"{side.hidden_seconds / side.send_seconds:.0%}" if side.send_seconds else "-",
    )


def main() -> None:
    """Parses the options, runs, prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="as in `stagemesh serve`")
    parser.add_argument("--pp", type=int, default=2, help="stages, at least 2")
    parser.add_argument("--tp", default="1", help="ranks of the stages, as in `stagemesh serve`")
    parser.add_argument("--threads", type=int, default=1, help="compute threads a rank")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32], help="batch sizes")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per prompt")
    parser.add_argument("--repeats", type=int, default=3, help="runs per batch and mesh")
    options = parser.parse_args()
    console = Console()
    console.print(asyncio.run(compare(options, console)))


if __name__ == "__main__":
    main()
