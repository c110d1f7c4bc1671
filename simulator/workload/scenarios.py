"""The scenarios in which policies are compared: load, pipeline, changes during the run.

All run Llama-2-70B in four stages of four H100s each, with measured times.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources

from runtime.errors import InvalidRequestError
from scheduler import SchedulerLimits, split_layers
from simulator.model.pipeline import LinkSpec, PipelineSpec, SpeedChange, layer_shares
from simulator.model.stage_times import guess_stages, load_times, num_layers_of
from simulator.workload.outcomes import Targets
from simulator.workload.traces import Lengths, LoadShape, Trace, at_rate, fit, read_trace, synthetic

HARDWARE = "llama2-70b/h100-80gb/4"
NUM_STAGES = 4
SLOWED_STAGE = 1

CONVERSATION = LoadShape(Lengths(900, 0.9, 8000), Lengths(150, 0.8, 1000))
CODE = LoadShape(Lengths(1500, 0.9, 8000), Lengths(20, 0.7, 200))
BURSTS = replace(CONVERSATION, burstiness=16.0)

TraceMaker = Callable[[int, float, int], Trace]
"""Makes a trace from a number of requests, their rate per second and a seed."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario; with `slows_down` a stage takes twice as long from the middle of the trace on.

    The last stage's head costs `head_layers` layers. `usual_rate` is the expected goodput, at
    which a search starts.
    """

    name: str
    make_trace: TraceMaker
    pipeline: PipelineSpec
    limits: SchedulerLimits
    targets: Targets
    slows_down: bool = False
    head_layers: float = 0.0
    usual_rate: float = 10.0

    def pipeline_for(self, trace: Trace) -> PipelineSpec:
        """Returns the pipeline with its speed changes for this trace."""
        if not self.slows_down:
            return self.pipeline
        middle = trace[len(trace) // 2].arrival
        change = SpeedChange(middle, stage=SLOWED_STAGE, factor=2.0)
        return replace(self.pipeline, changes=(change,))

    def on(self, hardware: str, layers: Sequence[int] | None = None) -> "Scenario":
        """Returns the scenario on other stages: of the given layer counts, or four near-equal ones.

        Raises `InvalidRequestError` for unknown hardware, for layers that do not add up to the
        model, and for too few stages for the scenario.
        """
        times, num_layers = load_times(hardware), num_layers_of(hardware)
        if layers is None:
            layers = split_layers(num_layers, NUM_STAGES)
        _check_layers(layers, num_layers, hardware)
        if self.slows_down and len(layers) <= SLOWED_STAGE:
            problem = f"{self.name} slows down the second stage; pass at least two stages"
            raise InvalidRequestError(field="--plan", problem=problem)
        shares = layer_shares(layers, self.head_layers)
        return replace(
            self,
            pipeline=replace(self.pipeline, times=times, shares=shares),
            limits=replace(
                self.limits,
                num_steps_in_flight=2 * len(layers),
                guessed_costs=guess_stages(hardware, shares),
            ),
        )


def make_scenarios() -> dict[str, Scenario]:
    """Returns all scenarios by name."""
    base = Scenario(
        name="steady",
        make_trace=partial(_synthetic, CONVERSATION),
        pipeline=PipelineSpec(load_times(HARDWARE), (1.0,)),
        limits=DEFAULT_LIMITS,
        targets=Targets(ttft_seconds=2.0, tpot_seconds=0.1),
    )
    slow_link = LinkSpec(latency_seconds=0.0105)
    quarter = replace(base.limits, num_blocks=base.limits.num_blocks // 4)
    scenarios = (
        base,
        replace(base, name="flip", make_trace=_flip),
        replace(base, name="slow-stage", slows_down=True),
        replace(base, name="slow-link", pipeline=replace(base.pipeline, link=slow_link)),
        replace(base, name="small-cache", limits=quarter),
        replace(base, name="heavy-head", head_layers=10.0),
        replace(base, name="bursts", make_trace=partial(_synthetic, BURSTS)),
        replace(base, name="azure-code", make_trace=partial(_recorded, "azure_code_2023_head.csv")),
        replace(
            base,
            name="mooncake",
            make_trace=partial(_recorded, "mooncake_conversation_head.jsonl"),
            targets=Targets(ttft_seconds=10.0, tpot_seconds=0.1),
            usual_rate=2.0,
        ),
    )
    return {scenario.name: scenario.on(HARDWARE) for scenario in scenarios}


DEFAULT_LIMITS = SchedulerLimits(
    num_blocks=40_000,
    block_size=16,
    max_sequences=512,
    max_step_tokens=2048,
    max_model_len=16_384,
    num_steps_in_flight=8,
    max_waiting=100_000,
)

HASH_STRIDE = 1_000_000
"""Greater than any prefix hash of a recorded trace."""


def _check_layers(layers: Sequence[int], num_layers: int, hardware: str) -> None:
    if sum(layers) != num_layers:
        counts = ",".join(map(str, layers))
        example = ",".join(map(str, split_layers(num_layers, NUM_STAGES)))
        problem = (
            f"{counts} are {sum(layers)} layers, and {hardware} has {num_layers}; "
            f"pass the layers of each stage, as {example}"
        )
        raise InvalidRequestError(field="--plan", problem=problem)


def _synthetic(shape: LoadShape, num_requests: int, rate: float, seed: int) -> Trace:
    return synthetic(shape, num_requests, rate, seed)


def _flip(num_requests: int, rate: float, seed: int) -> Trace:
    """Code for half of the requests, then conversation."""
    first = synthetic(CODE, num_requests // 2, rate, seed)
    then = synthetic(CONVERSATION, num_requests - num_requests // 2, rate, seed + 1)
    start = first[-1].arrival + 1 / rate
    return first + tuple(replace(request, arrival=start + request.arrival) for request in then)


def _recorded(file: str, num_requests: int, rate: float, seed: int) -> Trace:
    """A recorded trace at `rate`, starting at a different request for each seed.

    A trace that is too short is repeated, with other prompts of the same lengths.
    """
    with resources.as_file(resources.files("simulator") / "data" / file) as path:
        trace = fit(read_trace(path), DEFAULT_LIMITS.max_model_len)
    span = trace[-1].arrival + 1.0
    start = 97 * seed % len(trace)
    turned = list(trace[start:])
    for turn in range(1, 2 + num_requests // len(trace)):
        turned += [
            replace(
                each,
                arrival=each.arrival + turn * span,
                prefix_hashes=tuple(name + turn * HASH_STRIDE for name in each.prefix_hashes),
            )
            for each in trace
        ]
    first = turned[0].arrival
    return at_rate(
        [replace(each, arrival=each.arrival - first) for each in turned[:num_requests]], rate
    )
