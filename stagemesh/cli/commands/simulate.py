"""Implements `stagemesh simulate`: replays a trace on a virtual clock, to compare policies."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from runtime.errors import InvalidRequestError
from scheduler import POLICY_NAMES
from scheduler.policies import PolicyName
from simulator.model.pipeline import LinkSpec
from simulator.results.compare import contender, goodput, replay, summary_of
from simulator.results.report import Comparison, policy_table
from simulator.results.report import as_json as report_as_json
from simulator.results.timeline import draw_timeline
from simulator.workload.outcomes import Targets
from simulator.workload.scenarios import HARDWARE, Scenario, make_scenarios
from simulator.workload.traces import Trace, at_rate, fit, read_trace
from stagemesh.cli.options.option_types import Flag, Layers, Picture, Positive, Seconds, between
from stagemesh.display.render import output_console

Rate = Annotated[float, between(1e-6, 1e6)]


# Longer than other functions: its parameters and their descriptions are the command's options.
def simulate(
    *,
    trace: Path | None = None,
    scenario: str = "steady",
    plan: Layers | None = None,
    hardware: str = HARDWARE,
    policy: Literal["all", PolicyName] = "all",
    rate: Rate | None = None,
    requests: Positive | None = None,
    step_tokens: Positive = 512,
    ttft: Seconds | None = None,
    tpot: Seconds | None = None,
    link_seconds: Annotated[float, between(0, 60)] | None = None,
    find_goodput: Annotated[bool, Flag] = False,
    seed: Annotated[int, between(0, 2**31)] = 0,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    plot: Picture = None,
) -> None:
    """Replay requests on a virtual clock through the real scheduler and simulated stages.

    Step times are measurements of Llama-2-70B or BLOOM-176B on A100 or H100, with noise. Without
    --trace, a scenario generates the requests: steady, flip, slow-stage, slow-link, small-cache,
    heavy-head, bursts, azure-code or mooncake.

    Parameters
    ----------
    trace
        Trace file to replay: the Azure LLM inference trace (.csv) or Mooncake's (.jsonl).
    scenario
        Requests without --trace, and events in the pipeline.
    plan
        Number of layers of each stage, such as 10,30,40. [default: four equal stages]
    hardware
        Model, device, and devices per stage, as in simulator/data/splitwise_times.csv.
    policy
        One batching policy, or all of them for comparison.
    rate
        Requests per second. [default: as recorded; 8 for a scenario]
    requests
        Number of requests. [default: the whole trace; 500 for a scenario]
    step_tokens
        Tokens per microbatch of the policies fixed and vllm.
    ttft
        Target for the time to the first token, in seconds.
    tpot
        Target for the time per output token, in seconds.
    link_seconds
        Latency of each hop between stages, in seconds.
    find_goodput
        Also search for the highest rate at which 90% of requests meet both targets.
    seed
        Random seed of the noise and of a scenario's requests.
    as_json
        Print one JSON object, for scripts.
    plot
        Write a PNG file with the stages' timeline; with several policies, one file for each.
    """
    setting = _setting(scenario, plan, hardware, link_seconds, ttft, tpot)
    load = _load(setting, trace, rate, requests, seed)
    if trace is not None:
        setting = replace(setting, make_trace=lambda count, rate, _: at_rate(load[:count], rate))
    comparison = Comparison()
    policies: Sequence[PolicyName] = POLICY_NAMES if policy == "all" else (policy,)
    for name in policies:
        entry = contender(name, setting, step_tokens)
        started = time.perf_counter()
        result = replay(setting, load, entry, seed)
        comparison.seconds[name] = time.perf_counter() - started
        comparison.summaries[name] = summary_of(setting, result, entry)
        comparison.snapshots[name] = result.policy_snapshot
        if find_goodput:
            comparison.goodputs[name] = goodput(setting, entry, len(load), seed)
        if plot is not None:
            file = plot if len(policies) == 1 else plot.with_stem(f"{plot.stem}-{name}")
            draw_timeline(result.spans, result.num_stages, file, name)
    if as_json:
        sys.stdout.write(json.dumps(report_as_json(comparison), indent=2) + "\n")
    else:
        what = trace.name if trace is not None else setting.name
        title = f"{what}: {len(load)} requests, {setting.pipeline.num_stages} stages of {hardware}"
        output_console().print(policy_table(title, comparison))


def _setting(
    name: str,
    plan: Sequence[int] | None,
    hardware: str,
    link_seconds: float | None,
    ttft: float | None,
    tpot: float | None,
) -> Scenario:
    scenarios = make_scenarios()
    if name not in scenarios:
        problem = f"{name!r} is not one of {', '.join(scenarios)}"
        raise InvalidRequestError(field="--scenario", problem=problem)
    base = scenarios[name].on(hardware, plan)
    pipeline = base.pipeline
    if link_seconds is not None:
        pipeline = replace(pipeline, link=LinkSpec(latency_seconds=link_seconds))
    targets = Targets(
        ttft_seconds=base.targets.ttft_seconds if ttft is None else ttft,
        tpot_seconds=base.targets.tpot_seconds if tpot is None else tpot,
    )
    return replace(base, pipeline=pipeline, targets=targets)


def _load(
    setting: Scenario, trace: Path | None, rate: float | None, requests: int | None, seed: int
) -> Trace:
    if trace is None:
        return setting.make_trace(requests or 500, rate or 8.0, seed)
    load = fit(read_trace(trace, requests), setting.limits.max_model_len)
    return load if rate is None else at_rate(load, rate)
