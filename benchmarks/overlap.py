"""Overlap of receive, compute, send and all-reduce, compared with sequential execution.

`off`: a stage receives, computes and sends sequentially. `auto`, the default: all three overlap.
`on`, for stages with several ranks: every step is also cut into two slices, and one computes while
the other's all-reduce runs; the difference to `auto` is the gain of the slices.

The workload and the figures are those of `benchmarks.serving`. All meshes stay loaded, and each
idles while another works. "Sent" is the data that every stage's rank 0 sent, "hidden" the share of
the send time in which the stage computed another step, and "waited" the mean share of compute
time in which a rank waited for the other ranks of its stage.
"""

import argparse
import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final, Literal

from rich.console import Console
from rich.table import Table

from benchmarks import command
from benchmarks.command import checked, threads, whole
from benchmarks.mesh import UNCACHED, running_mesh
from benchmarks.reference import BatchRun
from benchmarks.serving import identical, infer_batch, summarize
from stagemesh import AsyncClient
from stagemesh.cli.options.common import DeviceOptions, PlanOptions
from stagemesh.client.stage_state import StageState
from stagemesh.display.render import compact_table, output_console
from stagemesh.units import format_size, parse_ranks

COLUMNS = (
    *("batch", "overlap", "output tok/s", "TTFT s", "TPOT ms"),
    *("sent", "hidden", "waited", "same tokens"),
)
# Ranks report their activity with their heartbeats, once a second.
_HEARTBEATS_SECONDS: Final = 2.5

Overlap = Literal["off", "auto", "on"]


@dataclass(slots=True)
class _Side:
    """One of the meshes, and its measurements of one batch size."""

    client: AsyncClient
    runs: list[BatchRun] = field(default_factory=list)
    num_bytes: int = 0
    send_seconds: float = 0.0
    hidden_seconds: float = 0.0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0

    async def run(self, batch: int, num_tokens: int) -> None:
        """One more run."""
        before = await self._stages()
        self.runs.append(await infer_batch(self.client, batch, num_tokens))
        await asyncio.sleep(_HEARTBEATS_SECONDS)
        for was, now in zip(before, await self._stages(), strict=True):
            stage = now.since(was)
            self.num_bytes += stage.num_bytes_sent
            self.send_seconds += stage.send_seconds
            self.hidden_seconds += stage.send_hidden_seconds
            self.compute_seconds += sum(rank.compute_seconds for rank in stage.ranks)
            self.wait_seconds += sum(rank.wait_seconds for rank in stage.ranks)

    async def _stages(self) -> tuple[StageState, ...]:
        (replica,) = (await self.client.state()).replicas
        return replica.stages


async def compare(options: argparse.Namespace, console: Console) -> Table:
    """Runs all meshes in turns and returns the table."""
    tp = ",".join(map(str, options.tp))
    title = f"{options.model}: pp={options.pp} tp={tp}, {options.threads} thread(s) a rank"
    table = compact_table(title, *COLUMNS, justify="right")
    overlaps: tuple[Overlap, ...] = (
        ("off", "auto", "on") if max(options.tp) > 1 else ("off", "auto")
    )
    device = DeviceOptions(threads=options.threads)
    async with AsyncExitStack() as stack:
        clients = {}
        for overlap in overlaps:
            plan = PlanOptions(
                pp=options.pp, tp=options.tp, backend=options.backend, overlap=overlap
            )
            mesh = running_mesh(options.model, plan, UNCACHED, device)
            clients[overlap] = await stack.enter_async_context(mesh)
        for batch in options.batch:
            sides = {overlap: _Side(client) for overlap, client in clients.items()}
            for _ in range(options.repeats):
                for side in sides.values():
                    await side.run(batch, options.tokens)
            for overlap, side in sides.items():
                same, total = identical(side.runs, sides["off"].runs)
                table.add_row(str(batch), overlap, *_figures(side, options), f"{same}/{total}")
            console.print(f"batch {batch} done", style="dim")
    return table


def _figures(side: _Side, options: argparse.Namespace) -> tuple[str, ...]:
    figures = summarize(side.runs, options.tokens)
    return (
        f"{figures.tokens_per_second:.1f}",
        f"{figures.ttft_seconds:.2f}",
        f"{figures.tpot_seconds * 1e3:.1f}",
        format_size(side.num_bytes / options.repeats),
        _share(side.hidden_seconds, side.send_seconds),
        _share(side.wait_seconds, side.compute_seconds),
    )


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = command.make_parser(
        "overlap", __doc__, "several minutes", "--pp 2", "--pp 1 --tp 2 --batch 1 --repeats 1"
    )
    add = parser.add_argument
    add("--model", default="smollm2", help=command.MODEL_HELP)
    add("--pp", type=whole(), default=2, help="stages")
    add("--tp", type=checked(parse_ranks), default="1", help="ranks of the stages, as 2 or 2,1")
    add("--backend", choices=command.BACKENDS, default="auto", help="of the ranks")
    add("--threads", type=threads, default=1, help="compute threads a rank")
    add("--batch", type=whole(), nargs="+", default=[1, 8, 32], help="batch sizes")
    add("--tokens", type=whole(), default=64, help="new tokens per prompt")
    add("--repeats", type=whole(), default=3, help="runs per batch and mesh")
    return parser


def main() -> None:
    """Parses the options, runs, prints the table."""
    parser = make_parser()
    chosen, console = parser.parse_args(), output_console()
    if len(chosen.tp) not in (1, chosen.pp):
        parser.error(f"--tp names {len(chosen.tp)} stages of {chosen.pp}; give one number, or each")
    command.run(lambda: console.print(asyncio.run(compare(chosen, console))))


if __name__ == "__main__":
    main()
