"""Plans a cycle: how many microbatches are in flight, and how long each shall take.

A cycle is the time in which every decode gets one token: as long as all microbatches in flight take
on the slowest stage, or as long as one needs around the pipeline, whichever is longer. All in
predicted seconds; nothing here keeps state.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scheduler.cost_model.feedback import StepWork
from scheduler.cost_model.stage_costs import KNOTS, StageCostModel
from scheduler.policies.adaptive.cycle_costs import CycleBasis, DecodeShare, PricedWork
from scheduler.policies.adaptive.targets import CycleLimits

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


class CyclePlan(NamedTuple):
    """One way to run a cycle; a tuple, because the best of many is sought in every cycle.

    Of the microbatches in flight, `num_with_prompts` carry prompts besides their decodes. One of
    those takes `target_seconds` on its slowest stage and has `target_tokens` rows. `rate` is what
    the cycle gets done per second: prompt tokens, or decodes where no prompt waits. `fits` says
    whether decodes get their tokens in time.

    `score` compares plans that are alike in `fits`, and no others, for it is another quantity in
    each case. Where plans fit, it is the rate, or, with thrift, what the cycle gets done in each
    second that it is longer than without prompts. Where they do not, it is 1 / `cycle_seconds`: the
    shortest cycle leads back to those that fit.
    """

    num_in_flight: int
    num_with_prompts: int
    target_seconds: float
    target_tokens: int
    cycle_seconds: float
    rate: float
    score: float
    fits: bool


class CyclePlanner:
    """Says what a cycle would be in each of the ways to run it."""

    def __init__(self, basis: CycleBasis, limits: CycleLimits) -> None:
        self._basis = basis
        self._limits = limits
        # By number of microbatches.
        self._rooms: dict[int, float] = {}
        self._least_seconds = 0.0
        load = basis.load
        if limits.prompt_cost_weight > 0.0 and load.num_prompt_tokens > 0 and load.num_decodes > 0:
            self._least_seconds = basis.least_seconds()

    def plan(self, num_in_flight: int, num_with_prompts: int) -> CyclePlan:
        """The best cycle with so many microbatches, so many of them with prompts.

        Chunks are as long as has the waiting prompts done soonest. The budget cuts that down:
        neither the microbatches in flight nor the way around may take longer.
        """
        basis, num_without = self._basis, num_in_flight - num_with_prompts
        share = basis.decode_share(num_in_flight)
        if basis.load.num_prompt_tokens == 0:
            return self._cycle(share, num_without, num_with_prompts, share)
        plans = [
            self._cycle(
                share, num_without, num_with_prompts, basis.with_chunk(num_in_flight, chunk)
            )
            for chunk in self._chunks(share, num_without, num_with_prompts)
        ]
        return max(plans, key=lambda plan: (plan.fits, plan.score))

    def _cycle(
        self,
        share: DecodeShare,
        num_without: int,
        num_with_prompts: int,
        mixed: PricedWork | DecodeShare,
    ) -> CyclePlan:
        """The cycle whose microbatches with prompts are `mixed`, and the others only decodes."""
        basis, limits = self._basis, self._limits
        work, times = mixed.work, mixed.stage_seconds
        busy = max(
            [
                num_with_prompts * seconds + num_without * without
                for seconds, without in zip(times, share.stage_seconds, strict=True)
            ]
        )
        cycle = max(busy, sum(times) + basis.overhead_seconds, MIN_CYCLE_SECONDS)
        num_decodes = basis.load.num_decodes
        num_prompt_tokens = work.num_tokens - share.work.num_tokens
        num_done = num_with_prompts * num_prompt_tokens if num_prompt_tokens else num_decodes
        spared = limits.prompt_cost_weight * min(self._least_seconds, share.seconds)
        fits = num_decodes == 0 or cycle <= limits.seconds * (1.0 + TOLERANCE)
        return CyclePlan(
            num_in_flight=num_without + num_with_prompts,
            num_with_prompts=num_with_prompts,
            target_seconds=max(times),
            target_tokens=work.num_tokens,
            cycle_seconds=cycle,
            rate=num_done / cycle,
            score=num_done / max(MIN_CYCLE_SECONDS, cycle - spared) if fits else 1.0 / cycle,
            fits=fits,
        )

    def _room(self, num_in_flight: int) -> float:
        """The prompt tokens that one of so many microbatches may have, whatever the others have."""
        room = self._rooms.get(num_in_flight)
        if room is None:
            basis, limits = self._basis, self._limits
            share = basis.decode_share(num_in_flight)
            left = limits.seconds - basis.overhead_seconds
            room = self._chunk_within(basis.around, share.work, sum(share.stage_seconds), left)
            if not limits.prompts_urgent:
                room = min(room, basis.makespan_optimal_chunk(num_in_flight))
            room = min(room, limits.max_step_tokens - share.work.num_tokens)
            self._rooms[num_in_flight] = room
        return room

    def _chunks(self, share: DecodeShare, num_without: int, num_with_prompts: int) -> list[int]:
        """The prompt tokens that a microbatch may have: all that the budgets of the stages allow.

        With thrift also fewer, to where the next row costs more than those before.
        """
        chunk = self._room(num_without + num_with_prompts)
        for stage, seconds in zip(self._basis.stages, share.stage_seconds, strict=True):
            budget = (self._limits.seconds - num_without * seconds) / num_with_prompts
            chunk = min(chunk, self._chunk_within(stage, share.work, seconds, budget))
        most = max(MIN_CHUNK_TOKENS, int(chunk))
        if self._least_seconds == 0.0:
            return [most]
        knees = (knot - share.work.num_tokens for knot in KNOTS)
        return [*(size for size in knees if MIN_CHUNK_TOKENS < size < most), most]

    def _chunk_within(
        self, costs: StageCostModel, work: StepWork, work_seconds: float, seconds: float
    ) -> float:
        """The chunk with which `work`, which takes `work_seconds`, takes no longer than that."""
        if math.isinf(seconds):
            seconds = (work_seconds + costs.prompt) / MIN_FIXED_SHARE
        return costs.chunk_tokens(seconds - work_seconds, work, self._basis.load.prompt_context)


def best_plan(plans: Sequence[CyclePlan], current: CyclePlan) -> CyclePlan:
    """The plan to aim at: the current one unless another is clearly better.

    One is better if decodes get their tokens in time and the current one does not give them that,
    or else, where both do or neither does, by its worth; or if it has fewer microbatches and is as
    good as the best, down to a single one.
    """
    best = max(plans, key=lambda plan: (plan.fits, plan.score))
    if (best.fits, best.score) > (current.fits, current.score * (1.0 + HYSTERESIS)):
        return best
    fewer = [
        plan
        for plan in plans
        if plan.num_in_flight < current.num_in_flight
        and (plan.fits, plan.score) >= (best.fits, best.score * (1.0 - NEGLIGIBLE))
    ]
    return min(fewer, key=lambda plan: plan.num_in_flight, default=current)
