"""Plans a cycle: how many microbatches are in flight, and how long each shall take.

A cycle is the time in which every decode gets one token: as long as all microbatches in flight take
on the slowest stage, or as long as one needs around the pipeline, whichever is longer. All in
predicted seconds; nothing here keeps state.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.feedback import StepWork
from scheduler.stage_costs import StageCosts, sum_costs

MIN_FIXED_SHARE = 0.04
"""Without a target, a microbatch grows until its fixed cost is this share of it, and no further."""
MIN_CYCLE_SECONDS = 1e-6
TOLERANCE = 0.03
"""A cycle may take so much longer than its budget and still count as in time."""
MIN_CHUNK_TOKENS = 16
"""Prompts get at least so much of a microbatch, however tight the budget: none starves."""
HYSTERESIS = 0.015
"""A plan must promise so much more before it replaces the one that is followed.

Little is enough: both are predicted by one model, whose errors mostly cancel.
"""
NEGLIGIBLE = 0.01
"""What fewer microbatches may lose and are still better: each one costs everybody a step."""


@dataclass(frozen=True, slots=True)
class CycleLoad:
    """What there is to do: decodes with their context in all, prompt tokens that wait.

    `prompt_context` is the position of a typical waiting token, which attention pays for.
    """

    num_decodes: int
    decode_context: int
    num_prompt_tokens: int
    prompt_context: float


@dataclass(frozen=True, slots=True)
class CycleLimits:
    """What a cycle may be: seconds from token to token, and rows of one microbatch.

    Where prompts hurry, chunks are as long as that allows. `memory_shortage`, from 0 to 1, says how
    much a short cycle is worth besides what it gets done: what runs then ends sooner.
    """

    seconds: float
    max_step_tokens: int
    prompts_hurry: bool = False
    memory_shortage: float = 0.0


@dataclass(frozen=True, slots=True)
class CyclePlan:
    """One way to run a cycle.

    Of the microbatches in flight, `num_with_prompts` carry prompts besides their decodes. One of
    those takes `target_seconds` on its slowest stage and has `target_tokens` rows. `rate` is what
    the cycle gets done per second: prompt tokens, or decodes where no prompt waits. `worth` is what
    plans are compared by: the rate, and the shorter cycle where memory is short. `fits` says
    whether decodes get their tokens in time.
    """

    num_in_flight: int
    num_with_prompts: int
    target_seconds: float
    target_tokens: int
    cycle_seconds: float
    rate: float
    worth: float
    fits: bool


def plan_cycle(
    stages: Sequence[StageCosts],
    overhead_seconds: float,
    load: CycleLoad,
    limits: CycleLimits,
    num_in_flight: int,
    num_with_prompts: int,
) -> CyclePlan:
    """The best cycle with so many microbatches, so many of them with prompts.

    Chunks are as long as finishes the waiting prompts soonest: with A seconds of work cut into
    pieces of fixed cost a over P stages, pieces of a + sqrt(A*a/(P-1)) do. The budget cuts that
    down: neither the microbatches in flight nor the way around may take longer.
    """
    share = _decode_share(load, num_in_flight)
    num_without, work = num_in_flight - num_with_prompts, share
    if load.num_prompt_tokens > 0:
        budgets = [(sum_costs(stages), limits.seconds - overhead_seconds)]
        for stage in stages:
            left = limits.seconds - num_without * stage.seconds(share)
            budgets.append((stage, left / num_with_prompts))
        work = _with_chunk(share, load, _chunk(stages, budgets, share, load, limits))
    times = [stage.seconds(work) for stage in stages]
    busy = max(
        num_with_prompts * seconds + num_without * stage.seconds(share)
        for seconds, stage in zip(times, stages, strict=True)
    )
    cycle = max(busy, sum(times) + overhead_seconds, MIN_CYCLE_SECONDS)
    num_prompt_tokens = work.num_tokens - share.num_tokens
    num_done = num_with_prompts * num_prompt_tokens if num_prompt_tokens else load.num_decodes
    return CyclePlan(
        num_in_flight=num_in_flight,
        num_with_prompts=num_with_prompts,
        target_seconds=max(times),
        target_tokens=work.num_tokens,
        cycle_seconds=cycle,
        rate=num_done / cycle,
        worth=num_done / cycle ** (1.0 + limits.memory_shortage),
        fits=load.num_decodes == 0 or cycle <= limits.seconds * (1.0 + TOLERANCE),
    )


def _chunk(
    stages: Sequence[StageCosts],
    budgets: Sequence[tuple[StageCosts, float]],
    share: StepWork,
    load: CycleLoad,
    limits: CycleLimits,
) -> int:
    """The prompt tokens of a microbatch with this share of the decodes, within all budgets."""
    chunk = math.inf if limits.prompts_hurry else _soonest_chunk(stages, share, load)
    for costs, seconds in budgets:
        chunk = min(chunk, _chunk_within(costs, share, load, seconds))
    most = limits.max_step_tokens - share.num_tokens
    return max(MIN_CHUNK_TOKENS, int(min(chunk, most)))


def best_plan(plans: Sequence[CyclePlan], current: CyclePlan) -> CyclePlan:
    """The plan to aim at: the current one unless another is clearly better.

    One is better if decodes get their tokens in time and the current one does not give them that,
    or else by its worth; or if it has fewer microbatches and is as good as the best, down to a
    single one.
    """
    best = max(plans, key=lambda plan: (plan.fits, plan.worth))
    if (best.fits, best.worth) > (current.fits, current.worth * (1.0 + HYSTERESIS)):
        return best
    fewer = [
        plan
        for plan in plans
        if plan.num_in_flight < current.num_in_flight
        and (plan.fits, plan.worth) >= (best.fits, best.worth * (1.0 - NEGLIGIBLE))
    ]
    return min(fewer, key=lambda plan: plan.num_in_flight, default=current)


def _decode_share(load: CycleLoad, num_in_flight: int) -> StepWork:
    num_decodes = -(-load.num_decodes // num_in_flight)
    return StepWork(
        num_tokens=num_decodes,
        num_decodes=num_decodes,
        decode_context=-(-load.decode_context // num_in_flight),
        num_sequences=num_decodes,
        num_sampled=num_decodes,
    )


def _with_chunk(share: StepWork, load: CycleLoad, num_tokens: int) -> StepWork:
    attention = num_tokens * (2 * int(load.prompt_context) + num_tokens)
    return replace(share, num_tokens=share.num_tokens + num_tokens, prefill_attention=attention)


def _soonest_chunk(stages: Sequence[StageCosts], share: StepWork, load: CycleLoad) -> float:
    """The chunk that has the waiting prompts done soonest, on the slowest stage."""
    slowest = max(stages, key=lambda stage: stage.seconds(_with_chunk(share, load, 512)))
    backlog = load.num_prompt_tokens * (
        slowest.last_token + 2.0 * load.prompt_context * slowest.per_attention
    )
    piece_fixed = slowest.seconds(share) + slowest.prompt
    piece = math.sqrt(backlog * piece_fixed / max(1, len(stages) - 1))
    return slowest.chunk_tokens(slowest.prompt + piece, share, load.prompt_context)


def _chunk_within(costs: StageCosts, share: StepWork, load: CycleLoad, seconds: float) -> float:
    """The chunk with which a microbatch takes no longer than that."""
    if math.isinf(seconds):
        seconds = (costs.seconds(share) + costs.prompt) / MIN_FIXED_SHARE
    return costs.chunk_tokens(seconds - costs.seconds(share), share, load.prompt_context)
