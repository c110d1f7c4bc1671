"""Measures one hop between two stages: `python -m benchmarks.hop` prints a table.

Two processes on loopback, each with its own uvloop. The sender is the worker's stage sender, the
receiver the worker's epoch session, with a stage that computes nothing. A step's latency lasts from
the output being ready until the device thread of the other process has the checked tensor. Both
read the same monotonic clock.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, cast

import torch
import uvloop

from benchmarks import command
from benchmarks.command import whole
from protos import stage_pb2
from runtime.host.logs import configure_logging
from runtime.protocol.step import SequenceChunk, Step
from runtime.protocol.step_codec import step_to_header
from runtime.rpc import channels
from stage_worker.device.device_thread import DeviceThread
from stage_worker.epoch.epoch_plan import RankEpochPlan
from stage_worker.epoch.epoch_session import EpochSession
from stage_worker.execution.stage_spec import StageOutput
from stage_worker.transport.frame_assembly import ReceivePlan
from stage_worker.transport.frame_codec import ForwardContext, add_forward_handler
from stage_worker.transport.stage_sender import LinkPlan, StageSender

if TYPE_CHECKING:
    from stage_worker.execution.stage_runner import StageRunner

SIZES_BYTES = (0, 4 << 10, 64 << 10, 1 << 20, 8 << 20, 32 << 20)
_HIDDEN_SIZE = 1024
_TOKEN_BYTES = 4 * _HIDDEN_SIZE
_EPOCH = stage_pb2.EpochId(coordinator_id="benchmark", counter=1)
_WINDOW = 2
_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class HopFigures:
    """One line of the table; the rate is of steps sent back to back, within the window."""

    size_bytes: int
    p50_seconds: float
    p99_seconds: float
    alone_bytes_per_second: float
    streamed_bytes_per_second: float


class _Sink:
    """A stage that reports to the sender's process when the device received each step."""

    device = torch.device("cpu")

    def __init__(self, arrivals: Connection) -> None:
        self._arrivals = arrivals

    def run(self, step: Step, hidden_TH: torch.Tensor | None) -> StageOutput:
        self._arrivals.send((step.number, time.monotonic()))
        return StageOutput(None, ())


class _Arrivals:
    """The arrivals that the other process reports."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(connection.fileno(), self._take)

    def _take(self) -> None:
        self._queue.put_nowait(self._connection.recv())

    async def of(self, step: int) -> float:
        """The time at which the other process' device got `step`; call it in step order."""
        async with asyncio.timeout(_WAIT_SECONDS):
            number, arrived_at = await self._queue.get()
        assert number == step
        return arrived_at


class _Hop:
    """The sending side."""

    def __init__(self, next_stage: StageSender, arrivals: _Arrivals) -> None:
        self._next_stage = next_stage
        self._arrivals = arrivals
        self._num_steps = 0

    async def measure(self, size_bytes: int, num_alone: int, num_streamed: int) -> HopFigures:
        """Steps of one size: one at a time, then back to back."""
        await self._alone(size_bytes)  # the first of a size grows buffers on both sides
        latencies = [await self._alone(size_bytes) for _ in range(num_alone)]
        seconds = await self._streamed(size_bytes, num_streamed)
        return HopFigures(
            size_bytes,
            p50_seconds=statistics.median(latencies),
            p99_seconds=statistics.quantiles(latencies, n=100)[98],
            alone_bytes_per_second=size_bytes / statistics.median(latencies),
            streamed_bytes_per_second=size_bytes * num_streamed / seconds,
        )

    async def _alone(self, size_bytes: int) -> float:
        header, hidden_TH = self._step(size_bytes)
        ready_at = time.monotonic()
        await self._next_stage.send(header, hidden_TH)
        return await self._arrivals.of(header.step) - ready_at

    async def _streamed(self, size_bytes: int, num_steps: int) -> float:
        steps = [self._step(size_bytes) for _ in range(num_steps)]
        begun_at = time.monotonic()
        for header, hidden_TH in steps:
            await self._next_stage.send(header, hidden_TH)
        arrived_at = [await self._arrivals.of(header.step) for header, _ in steps]
        return arrived_at[-1] - begun_at

    def _step(self, size_bytes: int) -> tuple[stage_pb2.StepHeader, torch.Tensor | None]:
        num_tokens = size_bytes // _TOKEN_BYTES
        chunks = (SequenceChunk(0, 0, tuple(range(num_tokens))),) if num_tokens else ()
        header = step_to_header(Step(self._num_steps, chunks=chunks))
        self._num_steps += 1
        return header, torch.zeros(num_tokens, _HIDDEN_SIZE) if num_tokens else None


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = command.make_parser(
        "hop", __doc__, "less than a minute", "", "--alone 50 --streamed-mib 64"
    )
    add = parser.add_argument
    add("--alone", type=whole(2), default=200, help="steps sent one at a time, per size")
    add("--streamed-mib", type=whole(), default=256, help="sent back to back, per size")
    return parser


def main() -> None:
    """Parse the command line, measure, print the table."""
    chosen = make_parser().parse_args()
    command.run(lambda: _print_table(chosen.alone, chosen.streamed_mib << 20))


def _print_table(num_alone: int, streamed_bytes: int) -> None:
    print(f"{'size':>9} {'p50 ms':>9} {'p99 ms':>9} {'alone MB/s':>11} {'streamed MB/s':>14}")
    with _other_process() as (address, connection):
        uvloop.run(_measure(address, connection, num_alone, streamed_bytes))


async def _measure(
    address: str, connection: Connection, num_alone: int, streamed_bytes: int
) -> None:
    plan = LinkPlan(_EPOCH, 0, address, _WINDOW, stage_pb2.DTYPE_FLOAT32, (0, _HIDDEN_SIZE))
    async with StageSender(plan) as next_stage, asyncio.TaskGroup() as tasks:
        credits = tasks.create_task(next_stage.read_credits())
        hop = _Hop(next_stage, _Arrivals(connection))
        for size_bytes in SIZES_BYTES:
            num_streamed = max(4, min(2 * num_alone, streamed_bytes // max(size_bytes, 1)))
            _print_row(await hop.measure(size_bytes, num_alone, num_streamed))
        credits.cancel()


def _print_row(figures: HopFigures) -> None:
    print(
        f"{_size_name(figures.size_bytes):>9}"
        f" {1e3 * figures.p50_seconds:>9.2f} {1e3 * figures.p99_seconds:>9.2f}"
        f" {figures.alone_bytes_per_second / 1e6:>11.0f}"
        f" {figures.streamed_bytes_per_second / 1e6:>14.0f}",
        flush=True,
    )


def _size_name(size_bytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


@contextmanager
def _other_process() -> Iterator[tuple[str, Connection]]:
    """Starts the receiving process; yields its address and the connection that reports arrivals."""
    context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    ours, theirs = context.Pipe()
    process = context.Process(target=_receive, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_WAIT_SECONDS):
            raise SystemExit("the receiving process did not start")
        yield ours.recv(), ours
    finally:
        process.terminate()
        process.join()


def _receive(connection: Connection) -> None:
    command.ignore_interrupts()
    configure_logging("receiver", "error", json=False)  # that the sender leaves is no news
    uvloop.run(_serve(connection))


async def _serve(connection: Connection) -> None:
    receive = ReceivePlan(
        epoch=_EPOCH,
        senders={0: (0, _HIDDEN_SIZE)},
        window=_WINDOW,
        max_step_tokens=max(SIZES_BYTES) // _TOKEN_BYTES,
        dtype=stage_pb2.DTYPE_FLOAT32,
        hidden_interval=(0, _HIDDEN_SIZE),
    )
    with closing(DeviceThread(1)) as thread:
        stage = cast("StageRunner", _Sink(connection))
        session = EpochSession(RankEpochPlan(receive), stage, thread)
        server = channels.make_server()
        add_forward_handler(server, _forward_to(session))
        connection.send(await channels.bind(server, "127.0.0.1:0"))
        await server.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(session.run())
            async for _ in session.results.messages():
                pass


def _forward_to(session: EpochSession) -> Callable[[Any, ForwardContext], Awaitable[None]]:
    async def forward(_: Any, context: ForwardContext) -> None:
        await session.serve_sender(context)

    return forward


if __name__ == "__main__":
    main()
