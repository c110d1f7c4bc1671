"""What `adaptive` aims at in its next cycle: how long it may be, and what there is to do.

Read off the scheduler's view and the clients' targets; nothing here keeps state or predicts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.cost_model.feedback import StepWork
from scheduler.policies.interface import SchedulerView, SequenceView

HORIZON_TOKENS = 8
"""Time that a sequence is ahead of its target, or behind, is spent over so many tokens."""
MIN_STRETCH, MAX_STRETCH = 0.6, 2.0
"""Bounds of a cycle, in targets, that being behind or ahead can lead to."""
MAX_SAMPLE = 128
"""So many decodes, evenly spaced, stand for all that are ready."""
EASY_SHARE = 0.2
"""Prompts are in no hurry that need less than this share of what can be computed."""


@dataclass(frozen=True, slots=True)
class CycleLoad:
    """What there is to do: decodes with their context in all, prompt tokens that wait.

    `prompt_context` is the position of a typical waiting token, which attention pays for.
    """

    num_decodes: int
    decode_context: int
    num_prompt_tokens: int
    prompt_context: float

    def decodes(self, number: int) -> StepWork:
        """A microbatch of so many typical decodes."""
        return StepWork(
            num_tokens=number,
            num_decodes=number,
            decode_context=-(-number * self.decode_context // max(1, self.num_decodes)),
            num_sequences=number,
            num_sampled=number,
        )


@dataclass(frozen=True, slots=True)
class CycleLimits:
    """What a cycle may be: seconds from token to token, and rows of one microbatch.

    Where prompts hurry, chunks are as long as that allows.

    `prompt_cost_weight`, from 0 to 1, weighs a low cost of prompt tokens for other sequences
    against their throughput. In the long run every decode brings its share of prompt tokens with
    it, whatever
    the chunks, and what runs ends the sooner the shorter cycles are on average: those prompt
    tokens are best computed where each makes its cycle longer by the least.
    """

    seconds: float
    max_step_tokens: int
    prompts_urgent: bool = False
    prompt_cost_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class PromptBacklog:
    """The prompts that find slot and memory: how many tokens, and the position of a typical one.

    The rates are prompt tokens a second that bring all of them their first tokens in time.
    `rate_slo` counts prompts with a TTFT target that can still be met; `rate_all` counts all, by
    the deadlines that order the queue, and is infinite where one has passed.
    """

    num_tokens: int = 0
    context: float = 0.0
    rate_slo: float = 0.0
    rate_all: float = 0.0


def cycle_seconds(
    view: SchedulerView, common: float | None, slack: float, lone_seconds: float = 0.0
) -> float:
    """How long a cycle may be, so that nine in ten sequences keep their time per token.

    A sequence that is ahead of its target may take longer for a while, one that is behind
    has to catch up. While nothing decodes, nobody waits for a cycle's end, and it may take any
    time.

    A decode alone in the pipeline takes `lone_seconds`. A target below that is kept by no chunk,
    however short, so it counts for nothing: where there is no other, throughput decides.
    """
    if view.num_decoding == 0:
        return math.inf
    allowed: list[float] = []
    aim = math.inf if common is None or common < lone_seconds else common
    for sequence in _sample(view):
        target = sequence.request.tpot_target_seconds or common
        first_token_at = sequence.first_token_at
        if target is None or target < lone_seconds or first_token_at is None:
            continue
        aim = min(aim, target)
        lead = target * (sequence.num_generated - 1) - (view.now - first_token_at)
        allowed.append(target + lead / HORIZON_TOKENS)
    aim *= 1.0 - slack
    if not allowed:
        return aim
    tightest = sorted(allowed)[len(allowed) // 10] * (1.0 - slack)
    return min(MAX_STRETCH * aim, max(MIN_STRETCH * aim, tightest))


def _sample(view: SchedulerView) -> Sequence[SequenceView]:
    return view.ready[:: -(-len(view.ready) // MAX_SAMPLE) or 1]


def prompt_cost_weight(view: SchedulerView, prompts: PromptBacklog, rate: float) -> float:
    """As far as the cache is full, or prompts need little of the `rate` that there is."""
    used = 1.0 - view.num_blocks_free / view.limits.num_blocks
    return max(used, 1.0 - prompts.rate_all / (EASY_SHARE * rate))


def prompt_backlog(view: SchedulerView) -> PromptBacklog:
    """The prompts to compute now: of those that wait only who finds slot and memory.

    While memory is what they wait for, longer chunks bring nothing, and a shorter cycle ends the
    running ones sooner.
    """
    now, num_tokens, moments, rate_slo, rate_all = view.now, 0, 0.0, 0.0, 0.0
    for sequence in (*view.prefilling, *view.waiting[: view.num_admissible]):
        num_unsent = sequence.num_unsent
        num_tokens += num_unsent
        moments += num_unsent * (sequence.num_sent + num_unsent / 2)
        left = sequence.first_token_due - now
        rate = num_tokens / left if left > 0.0 else math.inf
        if rate > rate_all:
            rate_all = rate
        if rate > rate_slo and left > 0.0 and sequence.request.ttft_target_seconds is not None:
            rate_slo = rate
    context = moments / num_tokens if num_tokens else 0.0
    return PromptBacklog(num_tokens, context, rate_slo, rate_all)


def cycle_load(view: SchedulerView, prompts: PromptBacklog) -> CycleLoad:
    """What there is to do now."""
    sample = _sample(view)
    mean_context = sum(each.num_sent for each in sample) / len(sample) if sample else 0.0
    return CycleLoad(
        num_decodes=view.num_decoding,
        decode_context=int(mean_context * view.num_decoding),
        num_prompt_tokens=prompts.num_tokens,
        prompt_context=prompts.context,
    )
