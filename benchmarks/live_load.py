"""Replays a trace on a running mesh and on the simulator, and summarises both alike."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runtime.errors import StagemeshError
from scheduler import PolicyName, SchedulerLimits, guess_costs, make_policy
from simulator.model.pacing import PacedModel
from simulator.model.pipeline import LinkSpec, PipelineSpec, layer_shares
from simulator.replay import Replay, ReplayOptions, RunResult
from simulator.results.measures import Percentiles
from simulator.workload.outcomes import RequestOutcome
from simulator.workload.traces import Trace, TraceRequest
from stagemesh import AsyncClient, GenerationRequest, MeshState, TokenIds
from stagemesh.cli.options.common import BatchingOptions, PlanOptions
from stagemesh.cli.options.launching import MeshOptions, coordinator_options

HOP_SECONDS = 0.0007
"""One hop between two processes of this machine, as `benchmarks.hop` measures small steps."""
COORDINATOR_SECONDS = 0.0008
ROW_BYTES = 576 * 4
NUM_IDS = 40_000


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """Client-side figures of a trace; `bubble` is the idle share of the stages' time."""

    token_rate: float
    ttft: Percentiles
    tpot: Percentiles
    bubble: float


async def play(client: AsyncClient, trace: Trace) -> tuple[RequestOutcome, ...]:
    """Sends every request at its time; outcomes are relative to the trace's start."""
    began_at = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(_ask(client, index, request, began_at))
            for index, request in enumerate(trace)
        ]
    return tuple(task.result() for task in running)


async def _ask(
    client: AsyncClient, index: int, request: TraceRequest, began_at: float
) -> RequestOutcome:
    await asyncio.sleep(began_at + request.arrival - time.monotonic())
    ids = tuple(3 + token_id % NUM_IDS for token_id in request.prompt_ids(index))
    generation = GenerationRequest(
        prompts=(TokenIds(ids),), max_tokens=request.num_output_tokens, ignore_eos=True
    )
    first_at, num_tokens = None, 0
    try:
        async for update in client.infer(generation):
            if update.tokens and first_at is None:
                first_at = time.monotonic() - began_at
            num_tokens += len(update.tokens)
    except StagemeshError:
        return RequestOutcome(request, None, None, 0)
    return RequestOutcome(request, first_at, time.monotonic() - began_at, num_tokens)


async def measure(client: AsyncClient, trace: Trace) -> LoadFigures:
    """Replays a trace on a running mesh."""
    before = await client.state()
    outcomes = await play(client, trace)
    return summed_up(outcomes, _bubble(await client.state(), before))


def simulated(
    pace: PacedModel, layers: Sequence[int], policy: PolicyName, trace: Trace
) -> LoadFigures:
    """Replays the trace on the simulator, with the mesh's stages and limits."""
    result = make_replay(pace, layers, policy, trace).run()
    return summed_up(result.outcomes, _simulated_bubble(result))


def make_replay(
    pace: PacedModel,
    layers: Sequence[int],
    policy: PolicyName,
    trace: Trace,
    on_token: Callable[[int, float], None] | None = None,
) -> Replay:
    """A replay of a trace on a simulated mesh like the one that runs."""
    mesh = MeshOptions(PlanOptions(pp=len(layers)), BatchingOptions(policy=policy))
    options = coordinator_options("", mesh)
    limits = SchedulerLimits(
        num_blocks=pace.num_kv_blocks,
        block_size=options.block_size,
        max_sequences=options.max_sequences,
        max_step_tokens=options.max_step_tokens,
        max_model_len=8192,
        num_steps_in_flight=options.steps_in_flight,
        max_waiting=options.max_waiting,
        guessed_costs=tuple(guess_costs("paced", 0, 4, num_layers) for num_layers in layers),
    )
    pipeline = PipelineSpec(
        times=pace.times,
        shares=layer_shares(layers),
        link=LinkSpec(HOP_SECONDS),
        row_bytes=ROW_BYTES,
        window=options.window,
        noise=pace.noise,
        latency_seconds=HOP_SECONDS,
        changes=pace.changes,
    )
    replay_options = ReplayOptions(coordinator_seconds=COORDINATOR_SECONDS, max_tokens=8192)
    made = make_policy(policy, options.policy_options)
    return Replay(trace, pipeline, limits, made, replay_options, on_token)


def summed_up(outcomes: Sequence[RequestOutcome], bubble: float) -> LoadFigures:
    """Summarises the requests that ended."""
    done = [each for each in outcomes if each.finished_at is not None]
    seconds = max(each.finished_at or 0.0 for each in done)
    tpots = [tpot for each in done if (tpot := each.tpot_seconds) is not None]
    return LoadFigures(
        token_rate=sum(each.num_tokens for each in done) / seconds,
        ttft=Percentiles.of([each.ttft_seconds or 0.0 for each in done]),
        tpot=Percentiles.of(tpots),
        bubble=bubble,
    )


def _bubble(now: MeshState, before: MeshState) -> float:
    stages = now.replicas[0].since(before.replicas[0]).stages
    idle = sum(stage.idle_seconds for stage in stages)
    return idle / (idle + sum(stage.compute_seconds for stage in stages))


def _simulated_bubble(result: RunResult) -> float:
    visits = [visit for span in result.spans for visit in span.step_trace.visits]
    idle = sum(visit.timing.idle_seconds for visit in visits)
    return idle / (idle + sum(visit.timing.compute_seconds for visit in visits))
