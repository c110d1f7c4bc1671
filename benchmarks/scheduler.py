"""Time that the scheduler needs for one step: `schedule()`, and with its result `update()`.

`update` includes the reports of four stages (`observe`).

Each load keeps a constant number of running requests: a finished one is replaced, so that steps
carry decodes, prompts, slot openings and releases as in a busy server. All prompts share a quarter
of their tokens through the prefix cache. Decodes are spread over the steps in flight. With --memory
below 1, the memory forecast limits the running requests. No model runs: results arrive at once.
"""

import argparse
import statistics
import time
from collections import deque
from dataclasses import dataclass
from itertools import product

from rich.table import Table

from benchmarks import command
from benchmarks.command import above_zero, whole
from runtime.host import process
from runtime.protocol.step import SampledToken, SlotSampling, StageTiming, Step
from scheduler import (
    POLICY_NAMES,
    PolicyOptions,
    Scheduler,
    SchedulerLimits,
    SequenceRequest,
    StageRecord,
    make_policy,
)
from scheduler.policies import AdaptiveOptions, MultiplicativeOptions, PolicyName
from stagemesh.display.render import compact_table, output_console

PROMPT_TOKENS = 256
SYSTEM_PROMPT = tuple(range(64))
NUM_OWN_TOKENS = PROMPT_TOKENS - len(SYSTEM_PROMPT)
MAX_TOKENS = 128
BLOCK_SIZE = 16
MAX_STEP_TOKENS = 2048
NUM_STAGES = 4


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One step: its work and the scheduler's time for it."""

    num_decodes: int
    num_tokens: int
    schedule_seconds: float
    update_seconds: float


class EndlessLoad:
    """A scheduler with a constant number of running requests and a queue of waiting ones."""

    def __init__(
        self,
        policy: PolicyName,
        num_running: int,
        num_steps_in_flight: int,
        num_waiting: int,
        memory: float = 1.0,
    ) -> None:
        """`memory` is the number of KV blocks, as a share of what all running requests need."""
        self.policy = policy
        self.num_running = num_running
        self.num_steps_in_flight = num_steps_in_flight
        blocks_per_sequence = (PROMPT_TOKENS + MAX_TOKENS) // BLOCK_SIZE + 1
        limits = SchedulerLimits(
            num_blocks=int(memory * num_running * blocks_per_sequence),
            block_size=BLOCK_SIZE,
            max_sequences=num_running,
            max_step_tokens=MAX_STEP_TOKENS,
            max_model_len=PROMPT_TOKENS + MAX_TOKENS,
            num_steps_in_flight=num_steps_in_flight,
            max_waiting=num_running + num_waiting,
        )
        options = PolicyOptions(
            max_step_tokens=MAX_STEP_TOKENS,
            multiplicative=MultiplicativeOptions(base_size=MAX_STEP_TOKENS, min_size=512),
            adaptive=AdaptiveOptions(tpot_seconds=0.5),
        )
        self.scheduler = Scheduler(limits, make_policy(policy, options))
        self.now = 0.0
        self._num_requests = 0
        for _ in range(num_running + num_waiting):
            self.add_request()

    def add_request(self) -> None:
        """Enqueues one request; lengths differ, so that requests do not end together."""
        self._num_requests += 1
        self.scheduler.add(
            SequenceRequest(
                sequence_id=self._num_requests,
                prompt_ids=SYSTEM_PROMPT + (self._num_requests,) * NUM_OWN_TOKENS,
                sampling=SlotSampling(),
                max_tokens=MAX_TOKENS // 2 + self._num_requests * 37 % (MAX_TOKENS // 2),
                stop_ids=frozenset(),
                arrival=float(self._num_requests),
            )
        )

    def fill(self) -> list[Step]:
        """Schedules until enough steps are in flight; returns them, oldest first."""
        steps: list[Step] = []
        while (step := self.scheduler.schedule(self.now)) is not None:
            steps.append(step)
        return steps

    def records(self, step: Step) -> list[StageRecord]:
        """The stages' reports of a step, with times in proportion to its rows."""
        seconds = 0.005 + 0.00002 * step.num_tokens
        self.now += seconds
        timing = StageTiming(compute_seconds=seconds, idle_seconds=0.001)
        return [StageRecord(step.number, stage, timing) for stage in range(NUM_STAGES)]


def measure(load: EndlessLoad, num_steps: int) -> list[StepFigures]:
    """Times `num_steps` steps, each with the update before it."""
    in_flight = deque(load.fill())
    figures = []
    for _ in range(num_steps):
        done = in_flight.popleft()
        sampled = [SampledToken(chunk.slot, 2) for chunk in done.chunks if chunk.sample]
        records = load.records(done)
        started = time.perf_counter()
        for record in records:
            load.scheduler.observe(record)
        events = load.scheduler.update(done.number, sampled, load.now)
        update_seconds = time.perf_counter() - started
        for event in events:
            if event.finish_reason is not None:
                load.add_request()
        started = time.perf_counter()
        step = load.scheduler.schedule(load.now)
        schedule_seconds = time.perf_counter() - started
        in_flight += [*(() if step is None else (step,)), *load.fill()]
        if step is None:
            continue  # the policy wants fewer in flight
        num_decodes = sum(len(chunk.token_ids) == 1 for chunk in step.chunks)
        figures.append(StepFigures(num_decodes, step.num_tokens, schedule_seconds, update_seconds))
    while in_flight:
        step = in_flight.popleft()
        sampled = [SampledToken(chunk.slot, 2) for chunk in step.chunks if chunk.sample]
        load.scheduler.update(step.number, sampled, load.now)
    load.scheduler.check_integrity()
    return figures


def row_of(load: EndlessLoad, num_steps: int) -> list[str]:
    """One load's row of the table: medians over the timed steps, and the slowest of them."""
    num_warmup = 2 * load.num_running * PROMPT_TOKENS // MAX_STEP_TOKENS + 20
    steps = measure(load, num_warmup + num_steps)[num_warmup:]
    both = [step.schedule_seconds + step.update_seconds for step in steps]
    seconds = [
        statistics.median(step.schedule_seconds for step in steps),
        statistics.median(step.update_seconds for step in steps),
        statistics.median(both),
        statistics.quantiles(both, n=100)[98],
        max(both),
    ]
    counts = [
        load.num_running,
        load.num_steps_in_flight,
        statistics.median(step.num_decodes for step in steps),
        statistics.median(step.num_tokens for step in steps),
    ]
    cells = [f"{count:.0f}" for count in counts]
    return [load.policy, *cells, *(f"{1000 * value:.2f}" for value in seconds)]


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = command.make_parser(
        "scheduler", __doc__, "about two minutes", "", "--running 100 --steps 200 --policy fixed"
    )
    add = parser.add_argument
    running = [10, 100, 1000]
    add("--running", type=whole(most=10_000), nargs="+", default=running, help="at the same time")
    add("--in-flight", type=whole(most=64), nargs="+", default=[4, 1], help="steps in flight")
    add("--waiting", type=whole(0), default=100, help="requests in line besides")
    add("--memory", type=above_zero(1.0), default=1.0, help="of the KV blocks that all need")
    add("--steps", type=whole(2), default=1000, help="steps that are timed per load")
    policies = ["fixed", "adaptive"]
    add("--policy", nargs="+", choices=POLICY_NAMES, default=policies, help="one or more")
    return parser


def main() -> None:
    """Prints one row per load."""
    parser = make_parser()
    chosen = parser.parse_args()
    if chosen.memory * min(chosen.running) < 1:
        parser.error(f"--memory {chosen.memory:g} holds none of {min(chosen.running)} requests")
    command.run(lambda: output_console().print(table_of(chosen)))


def table_of(chosen: argparse.Namespace) -> Table:
    """Measures every load."""
    headings: tuple[str, ...] = ("policy", "running", "flight", "decodes", "rows")
    headings += ("schedule", "update", "both", "p99", "max")
    title = "per step: what it carries, and the milliseconds to schedule and update it"
    table = compact_table(title, *headings, justify="right")
    for policy, num_running, num_in_flight in product(
        chosen.policy, chosen.running, chosen.in_flight
    ):
        load = EndlessLoad(policy, num_running, num_in_flight, chosen.waiting, chosen.memory)
        process.tune_gc()  # as the coordinator does
        table.add_row(*row_of(load, chosen.steps))
    return table


if __name__ == "__main__":
    main()
