"""The cost of the coordinator's metrics per step, relative to the step's time on a stage.

The cost is that of the calls by which the coordinator records a decode step: its work, each stage's
report and each token's latency; the fastest of several rounds, because other work on the machine
only adds to it. The step's time is what the stages of a running mesh report. In a full
pipeline one step is recorded in the time that a stage computes one.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from rich.table import Table

from benchmarks import command
from benchmarks.command import whole
from benchmarks.mesh import running_mesh
from benchmarks.serving import infer_batch
from coordinator.telemetry.replica_telemetry import ReplicaTelemetry
from coordinator.telemetry.scheduler_telemetry import StepMetrics
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.step import SendTiming, SequenceChunk, StageTiming, Step
from scheduler import StageRecord
from stagemesh import AsyncClient
from stagemesh.cli.options.common import BatchingOptions, DeviceOptions, PlanOptions
from stagemesh.display.render import compact_table, output_console

SCRAPE_SECONDS = 5.0
"""The scrape interval of deploy/prometheus.yml."""

_NUM_ROUNDS, _STEPS_PER_ROUND = 9, 300


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds for the metrics of one step, and for one scrape."""

    step_seconds: float
    scrape_seconds: float


def metrics_cost(num_stages: int, batch: int) -> Cost:
    """The fastest of several rounds."""
    metrics = CoordinatorMetrics(CollectorRegistry())
    telemetry = ReplicaTelemetry(0, (1,) * num_stages, metrics)
    step_metrics = StepMetrics(metrics, 0)
    step = Step(1, chunks=tuple(SequenceChunk(slot, 200, (5,), (), True) for slot in range(batch)))
    timing = StageTiming(1e-4, 1e-3, 2e-2, 1e-3, SendTiming(0, 1e-3, 1e-3, 1, 4096))
    records = [StageRecord(1, stage, timing) for stage in range(num_stages)]

    def record_step() -> None:
        step_metrics.observe(step, 0)
        step_metrics.observe_prefix_cache(0, 0)
        for record in records:
            telemetry.record(record)
        for _ in step.chunks:
            metrics.inter_token_latency.observe(0.02)

    rounds = []
    for _ in range(_NUM_ROUNDS):
        started = time.perf_counter()
        for _ in range(_STEPS_PER_ROUND):
            record_step()
        rounds.append((time.perf_counter() - started) / _STEPS_PER_ROUND)
    started = time.perf_counter()
    generate_latest(metrics.registry)
    return Cost(min(rounds), time.perf_counter() - started)


async def stage_seconds(client: AsyncClient, batch: int, num_tokens: int) -> float:
    """Mean step time on the slowest stage with `num_sequences` sequences."""
    before = await _sums(client)
    await infer_batch(client, batch, num_tokens)
    after = await _sums(client)
    return max(
        (seconds - old_seconds) / (steps - old_steps)
        for (old_seconds, old_steps), (seconds, steps) in zip(before, after, strict=True)
    )


async def _sums(client: AsyncClient) -> list[tuple[float, int]]:
    (replica,) = (await client.state()).replicas
    return [(stage.compute_seconds, stage.num_steps) for stage in replica.stages]


async def compare(options: argparse.Namespace) -> Table:
    """Runs a mesh and returns the table."""
    title = f"Metrics of one step, {options.model} in {options.pp} stages"
    names = ("sequences", "metrics us", "step on a stage ms", "share", "scrape ms", "share")
    table = compact_table(title, *names, justify="right")
    plan, device = PlanOptions(pp=options.pp), DeviceOptions(threads=1)
    async with running_mesh(options.model, plan, BatchingOptions(), device) as client:
        for batch in options.batch:
            seconds = await stage_seconds(client, batch, options.tokens)
            cost = metrics_cost(options.pp, batch)
            table.add_row(
                str(batch),
                f"{1e6 * cost.step_seconds:.0f}",
                f"{1e3 * seconds:.1f}",
                f"{cost.step_seconds / seconds:.2%}",
                f"{1e3 * cost.scrape_seconds:.1f}",
                f"{cost.scrape_seconds / SCRAPE_SECONDS:.2%}",
            )
    return table


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = command.make_parser(
        "metrics_overhead", __doc__, "about a minute", "", "--batch 1 --tokens 8"
    )
    add = parser.add_argument
    add("--model", default="smollm2", help=command.MODEL_HELP)
    add("--pp", type=whole(), default=2, help="stages")
    add("--batch", type=whole(), nargs="+", default=[1, 8, 32], help="batch sizes")
    add("--tokens", type=whole(2), default=32, help="new tokens per prompt")
    return parser


def main() -> None:
    """Parses the options, runs, prints the table."""
    chosen = make_parser().parse_args()
    command.run(lambda: output_console().print(asyncio.run(compare(chosen))))


if __name__ == "__main__":
    main()
