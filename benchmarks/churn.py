"""Many streams at both APIs, half of which their clients leave at a random moment.

Prints the resources held afterwards (there must be none), and the lag of the coordinator's event
loop during the load, from `event_loop_lag_seconds`. Exits with 1 if something is held or failed.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import command
from benchmarks.command import above_zero, threads, whole
from benchmarks.mesh import launched_mesh
from stagemesh import AsyncClient, MeshState
from stagemesh.bench.callers import CALL_ERRORS, ApiTarget, Caller, RequestRecord, connect
from stagemesh.bench.workload import BenchRequest
from stagemesh.cli.options.common import BatchingOptions, DeviceOptions, PlanOptions

_LAG = "stagemesh_event_loop_lag_seconds"
_TIMEOUT_SECONDS = 120.0
# Longest time until a client that does not wait for its answer's end leaves.
_STAY_SECONDS = 2.0
_IDLE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class MeshAddresses:
    """Both APIs of one mesh."""

    grpc: str
    http: str


@dataclass(slots=True)
class Churn:
    """Outcomes of the streams; `lag` counts event loop timers by histogram bucket."""

    num_finished: int = 0
    num_left: int = 0
    errors: list[str] = field(default_factory=list)
    lag: dict[float, float] = field(default_factory=dict)


async def churn(addresses: MeshAddresses, num_streams: int, seconds: float, seed: int = 0) -> Churn:
    """Keeps `num_streams` clients busy for `seconds`, then waits for those that do not leave."""
    result = Churn()
    grpc_api = ApiTarget("grpc", addresses.grpc, None, None)
    http_api = ApiTarget("http", addresses.http, None, None)
    async with (
        connect(grpc_api, _TIMEOUT_SECONDS, ignore_eos=True) as by_grpc,
        connect(http_api, _TIMEOUT_SECONDS, ignore_eos=True) as by_http,
    ):
        before = await lag_counts(addresses.http)
        end = time.perf_counter() + seconds
        async with asyncio.TaskGroup() as tasks:
            for number in range(num_streams):
                caller = (by_grpc, by_http)[number % 2]
                source = random.Random(f"{seed}/{number}")
                tasks.create_task(_visit(caller, source, end, result))
        after = await lag_counts(addresses.http)
    result.lag = {bound: count - before[bound] for bound, count in after.items()}
    return result


async def _visit(caller: Caller, source: random.Random, end: float, result: Churn) -> None:
    """One client's consecutive requests, of which it leaves every second one."""
    while time.perf_counter() < end:
        length = source.randint(4, 48)
        prompt = tuple(source.randint(3, 200) for _ in range(length))
        ask = BenchRequest(prompt, source.randint(1, 32))
        stay = source.uniform(0, _STAY_SECONDS) if source.random() < 0.5 else None
        try:
            async with asyncio.timeout(stay):
                await caller.send(ask, RequestRecord(0.0), time.perf_counter)
            result.num_finished += 1
        except TimeoutError:
            result.num_left += 1
        except CALL_ERRORS as error:
            result.errors.append(str(error) or type(error).__name__)


async def lag_counts(http: str) -> dict[float, float]:
    """Cumulative counts of the coordinator's loop timers, by upper bound of their lag."""
    async with httpx.AsyncClient(base_url=f"http://{http}", trust_env=False) as client:
        text = (await client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {
        float(sample.labels["le"]): sample.value
        for sample in families[_LAG].samples
        if sample.name.endswith("_bucket")
    }


def quantile(counts: Mapping[float, float], share: float) -> float:
    """The `share` quantile, interpolated as Prometheus' `histogram_quantile` does."""
    bounds = sorted(counts)
    wanted, below, lower = share * counts[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= wanted and counts[bound] > below:
            if bound == float("inf"):
                break
            return lower + (bound - lower) * (wanted - below) / (counts[bound] - below)
        below, lower = counts[bound], bound
    return lower


def held(state: MeshState) -> dict[str, int]:
    """Requests, slots and blocks that an idle mesh must not hold."""
    things = {"running": state.num_running, "waiting": state.num_waiting}
    for replica in state.replicas:
        things[f"slots of replica {replica.replica}"] = replica.num_slots_used
    return {name: count for name, count in things.items() if count}


async def until_idle(client: AsyncClient) -> dict[str, int]:
    """Waits until nothing is held, or for a limited time; returns what is still held."""
    left: dict[str, int] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(_IDLE_SECONDS):
            while left := held(await client.state()):
                pass
    return left


async def _measure(options: argparse.Namespace) -> int:
    plan, device = PlanOptions(pp=options.pp), DeviceOptions(threads=options.threads)
    batching = BatchingOptions(max_sequences=options.max_sequences)
    async with (
        launched_mesh(options.model, plan, batching, device) as launched,
        AsyncClient(launched.target) as client,
    ):
        addresses = MeshAddresses(launched.target, launched.http)
        result = await churn(addresses, options.streams, options.seconds, options.seed)
        left = await until_idle(client)
    print(f"{options.streams} streams for {options.seconds:g} s, pp={options.pp}")
    print(f"finished {result.num_finished}, left {result.num_left}, failed {len(result.errors)}")
    for share in (0.5, 0.99):
        milliseconds = quantile(result.lag, share) * 1e3
        print(f"event-loop lag, p{share * 100:g}: {milliseconds:.1f} ms")
    print(f"held afterwards: {left or 'nothing'}")
    if result.errors:
        print(f"first failure: {result.errors[0]}")
    return 1 if left or result.errors else 0


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = command.make_parser(
        "churn",
        __doc__,
        "--seconds, and a minute for the mesh to start and the last answers to end",
        "--streams 20 --seconds 10",
        "--streams 200 --seconds 30",
    )
    add = parser.add_argument
    add("--model", default="smollm2", help=command.MODEL_HELP)
    add("--pp", type=whole(), default=2, help="stages")
    add(
        "--threads",
        type=threads,
        default=1,
        help="compute threads a stage",
    )
    add("--streams", type=whole(most=10_000), default=200, help="clients at the same time")
    add("--max-sequences", type=whole(most=4096), default=64, help=command.MODEL_HELP)
    add("--seconds", type=above_zero(), default=60.0, help="for so long")
    add("--seed", type=whole(0), default=0, help="of prompts, lengths and departures")
    return parser


def main() -> None:
    """Parses the options, runs, prints."""
    chosen = make_parser().parse_args()
    command.run(lambda: asyncio.run(_measure(chosen)))


if __name__ == "__main__":
    main()
