"""Goodput of every policy in every scenario, simulated: the table of docs/scheduling.md.

Goodput is the highest request rate at which 90% of the requests meet both of the scenario's targets
(time to first token, time per output token). All policies get the same requests and the same noise
per seed. The baseline policies are tuned: for every scenario each uses the best of several
settings, selected with a seed that is not counted, at a rate just above the goodput of the first;
`adaptive` uses its defaults. The last column is the ratio of adaptive to the best baseline, seed by
seed.
"""

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import active_children, get_context

from rich.console import Console
from rich.table import Table

from benchmarks import command
from benchmarks.command import new_file, whole
from scheduler import POLICY_NAMES
from scheduler.policies import MultiplicativeOptions, PolicyName, ThrottleOptions
from simulator.results.compare import Contender, contender, good_share, goodput
from simulator.workload.scenarios import Scenario, make_scenarios
from stagemesh.display.render import compact_table, output_console

TUNING_SEED = 1000
BEYOND = 1.1
"""Settings are compared at this multiple of the first one's goodput, where they differ."""
BUDGETS = (256, 384, 512, 640, 768)
PREFILL_LIMITS = (512, 768, 1024)


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy in one scenario: its setting as text, and its goodput for every seed.

    `seconds` are what it took to find these, on one core.
    """

    scenario: str
    policy: PolicyName
    setting: str
    goodputs: tuple[float, ...]
    seconds: float


def settings_of(policy: PolicyName, scenario: Scenario) -> dict[str, Contender]:
    """The candidate settings, by their text."""
    plain = contender(policy, scenario)
    match policy:
        case "fixed" | "vllm":
            return {str(rows): contender(policy, scenario, rows) for rows in BUDGETS}
        case "throttle":
            options = plain.options
            return {
                f"{rows}": replace(
                    plain,
                    options=replace(options, throttle=ThrottleOptions(max_prefill_tokens=rows)),
                )
                for rows in PREFILL_LIMITS
            }
        case "multiplicative":
            latencies = (None, scenario.targets.tpot_seconds)
            return {
                "free" if latency is None else f"latency {latency:g} s": replace(
                    plain,
                    options=replace(
                        plain.options,
                        multiplicative=MultiplicativeOptions(
                            max_size=scenario.limits.max_step_tokens, latency_seconds=latency
                        ),
                    ),
                )
                for latency in latencies
            }
        case "adaptive":
            return {"": plain}


def measure(
    num_requests: int, num_tuning_requests: int, seeds: Sequence[int], key: tuple[str, PolicyName]
) -> Cell:
    """Tunes one policy for one scenario, then searches its goodput for every seed."""
    name, policy = key
    scenario = make_scenarios()[name]
    started = time.perf_counter()
    gc.disable()  # a replay makes hardly any cycles, and is slowed down by looking for them
    choices = settings_of(policy, scenario)
    first = next(iter(choices))
    guess = goodput(scenario, choices[first], num_tuning_requests, TUNING_SEED)
    best = tune(scenario, choices, num_tuning_requests, guess * BEYOND) if guess else first
    goodputs: list[float] = []
    for seed in seeds:
        goodputs.append(goodput(scenario, choices[best], num_requests, seed, guess))
        guess = goodputs[-1] or guess
        gc.collect()
    return Cell(name, policy, best, tuple(goodputs), time.perf_counter() - started)


def tune(scenario: Scenario, choices: dict[str, Contender], num_requests: int, rate: float) -> str:
    """The setting with the most requests within their targets at `rate`."""
    if len(choices) == 1:
        return next(iter(choices))
    shares = {
        setting: good_share(scenario, choice, num_requests, TUNING_SEED, rate)
        for setting, choice in choices.items()
    }
    return max(shares, key=lambda setting: shares[setting])


def spread(values: Sequence[float], digits: int) -> str:
    """Mean, and standard deviation if there are several."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ±{statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def table_of(cells: Sequence[Cell], scenarios: Sequence[str]) -> Table:
    """One row per scenario."""
    title = "goodput in requests/s (setting), mean and spread over the seeds"
    table = compact_table(title, "scenario", *POLICY_NAMES, "adaptive / best other")
    by_key = {(cell.scenario, cell.policy): cell for cell in cells}
    for name in scenarios:
        row = [by_key[name, policy] for policy in POLICY_NAMES]
        others = [cell for cell in row if cell.policy != "adaptive"]
        best = max(others, key=lambda cell: statistics.fmean(cell.goodputs))
        pairs = zip(by_key[name, "adaptive"].goodputs, best.goodputs, strict=True)
        ratios = [mine / other for mine, other in pairs if other > 0.0]
        texts = [
            spread(cell.goodputs, 1) + (f" ({cell.setting})" if cell.setting else "")
            for cell in row
        ]
        table.add_row(name, *texts, spread(ratios, 2) if ratios else "-")
    return table


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    scenarios = list(make_scenarios())
    parser = command.make_parser(
        "policies",
        __doc__,
        "a quarter of an hour on two idle cores, in proportion to scenarios, seeds and requests",
        "",
        "--scenario steady --seeds 1 --requests 100",
    )
    add = parser.add_argument
    add("--scenario", nargs="+", choices=scenarios, default=scenarios, help="one or more")
    add("--seeds", type=whole(most=1000), default=5, help="from 0 up, for requests and noise")
    add("--requests", type=whole(), default=500, help="requests of every replay")
    add("--tuning-requests", type=whole(), default=150, help="requests to choose settings by")
    add("--jobs", type=whole(most=1024), default=os.cpu_count(), help="processes at a time")
    add("--json", type=new_file, metavar="FILE", help="file for every figure")
    return parser


def main() -> None:
    """Prints the table, and writes every figure if asked."""
    chosen = make_parser().parse_args()
    command.run(lambda: compare(chosen, output_console()))


@contextmanager
def _worker_pool(num_processes: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that end at once with the block, also at Ctrl-C."""
    with ProcessPoolExecutor(
        num_processes, get_context("spawn"), initializer=command.ignore_interrupts
    ) as pool:
        try:
            yield pool
        except BaseException:
            for process in active_children():
                process.terminate()
            raise


def compare(chosen: argparse.Namespace, console: Console) -> None:
    """Measures every policy in every scenario."""
    work: Callable[[tuple[str, PolicyName]], Cell] = partial(
        measure, chosen.requests, chosen.tuning_requests, range(chosen.seeds)
    )
    keys = [(name, policy) for name in chosen.scenario for policy in POLICY_NAMES]
    cells: list[Cell] = []
    with _worker_pool(chosen.jobs) as pool:
        for cell in pool.map(work, keys):
            cells.append(cell)
            name = f"{cell.scenario:12} {cell.policy:15}"
            console.print(f"{name} {spread(cell.goodputs, 1)} in {cell.seconds:.0f} s")
    console.print(table_of(cells, chosen.scenario))
    if chosen.json is not None:
        figures = [
            {
                "scenario": cell.scenario,
                "policy": cell.policy,
                "setting": cell.setting,
                "goodputs": cell.goodputs,
            }
            for cell in cells
        ]
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
