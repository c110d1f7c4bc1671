"""Plans a cycle: the number of microbatches in flight, and the target time of each.

A cycle is the time in which every decode gets one token: the time of all microbatches in flight on
the slowest stage, or one round trip of the pipeline, whichever is longer. All times are predicted
seconds; nothing here keeps state across cycles.
"""

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

from scheduler.cost_model.feedback import StepWork
from scheduler.cost_model.stage_costs import KNOTS, StageCostModel
from scheduler.policies.adaptive.cycle_costs import CycleBasis, DecodeShare, PricedWork
from scheduler.policies.adaptive.targets import CycleLimits
from scheduler.policies.interface import SchedulerView, SequenceView, even_share


def partition_decodes(
    view: SchedulerView, num_microbatches: int, token_seconds: float, context_seconds: float
) -> Sequence[SequenceView]:
    """The ready decodes of the next microbatch, at most an even share in number.

    A decode costs `token_seconds` and `context_seconds` for each position before it. Longest
    processing time first (Graham, 1969): each goes to the cheapest of the microbatches that can
    still be sent.
    """
    share = even_share(view, num_microbatches)
    num_free = max(1, num_microbatches - view.num_steps_in_flight)
    if len(view.ready) <= share:
        return view.ready
    if num_free == 1:
        return view.ready[:share]  # the longest waiting, so that none is skipped twice
    longest_first = sorted(
        view.ready, key=lambda sequence: (-sequence.num_sent, sequence.sequence_id)
    )
    microbatches: list[list[SequenceView]] = [[] for _ in range(num_free)]
    cheapest = [(0.0, number) for number in range(num_free)]
    for sequence in longest_first:
        if not cheapest:
            break
        seconds, number = heapq.heappop(cheapest)
        microbatches[number].append(sequence)
        if len(microbatches[number]) < share:
            cost = token_seconds + context_seconds * sequence.num_sent
            heapq.heappush(cheapest, (seconds + cost, number))
    return microbatches[0]


MIN_FIXED_SHARE = 0.04
"""Without a target, a microbatch grows until its fixed cost is this share of it."""
MIN_CYCLE_SECONDS = 1e-6
TOLERANCE = 0.03
"""Relative excess over the budget with which a cycle still counts as in time."""
MIN_CHUNK_TOKENS = 16
"""Minimum prompt tokens of a microbatch, even with a tight budget, so that no prompt starves."""
HYSTERESIS = 0.015
"""Relative gain of score with which a plan replaces the current one.

A small value suffices: one model predicts both, and its errors mostly cancel.
"""
NEGLIGIBLE = 0.01
"""Relative loss of score that fewer microbatches may have: each adds a step to every token."""


class CyclePlan(NamedTuple):
    """One plan of a cycle; a tuple for speed, because every cycle compares many.

    Of the microbatches in flight, `num_with_prompts` carry prompts besides their decodes. One of
    those takes `target_seconds` on its slowest stage and has `target_tokens` rows. `rate` is the
    throughput: prompt tokens per second, or decodes if no prompt waits. `fits` is set if decodes
    get their tokens in time.

    `score` compares only plans with equal `fits`. For plans that fit, it is the rate, or, with a
    `prompt_cost_weight`, the work per second by which prompts lengthen the cycle. For others it is
    1 / `cycle_seconds`: the shortest cycle leads back to plans that fit.
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
    """Predicts a cycle for each combination of microbatches."""

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
        """The best cycle with these numbers of microbatches and of those with prompts.

        Chunks have the makespan-optimal length, limited by the budget: neither the microbatches in
        flight nor the round trip may take longer.
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
        """The cycle whose microbatches with prompts are `mixed`; the others carry only decodes."""
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
        discount = limits.prompt_cost_weight * min(self._least_seconds, share.seconds)
        fits = num_decodes == 0 or cycle <= limits.seconds * (1.0 + TOLERANCE)
        return CyclePlan(
            num_in_flight=num_without + num_with_prompts,
            num_with_prompts=num_with_prompts,
            target_seconds=max(times),
            target_tokens=work.num_tokens,
            cycle_seconds=cycle,
            rate=num_done / cycle,
            score=num_done / max(MIN_CYCLE_SECONDS, cycle - discount) if fits else 1.0 / cycle,
            fits=fits,
        )

    def _room(self, num_in_flight: int) -> float:
        """Maximum prompt tokens of one microbatch, independent of the others."""
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
        """Candidate chunk lengths: the maximum that the stages' budgets allow.

        With a `prompt_cost_weight` also the knots below it, where the cost per row increases.
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
        """The longest chunk with which `work` (`work_seconds` alone) takes at most `seconds`."""
        if math.isinf(seconds):
            seconds = (work_seconds + costs.prompt) / MIN_FIXED_SHARE
        return costs.chunk_tokens(seconds - work_seconds, work, self._basis.load.prompt_context)


def best_plan(plans: Sequence[CyclePlan], current: CyclePlan) -> CyclePlan:
    """The next plan: the current one unless another is clearly better.

    A plan is better if it fits and the current one does not; with equal `fits`, if its score is
    higher by `HYSTERESIS`; or if it has fewer microbatches and almost the best score.
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
