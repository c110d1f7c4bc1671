"""The target time and the load of `adaptive`'s next cycle, from the view and clients' targets.

Nothing here keeps state or predicts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.cost_model.feedback import StepWork
from scheduler.policies.interface import SchedulerView, SequenceView

HORIZON_TOKENS = 8
"""Tokens over which a sequence's lead or lag against its target is balanced."""
MIN_STRETCH, MAX_STRETCH = 0.6, 2.0
"""Bounds of a cycle relative to the target, for sequences behind or ahead."""
MAX_SAMPLE = 128
"""Size of the evenly spaced sample of ready decodes."""
EASY_SHARE = 0.2
"""Prompts are not urgent if they need less than this share of the available rate."""


@dataclass(frozen=True, slots=True)
class CycleLoad:
    """The load: decodes with their total context, and waiting prompt tokens.

    `prompt_context` is the mean position of a waiting token, which determines attention cost.
    """

    num_decodes: int
    decode_context: int
    num_prompt_tokens: int
    prompt_context: float

    def decodes(self, number: int) -> StepWork:
        """The work of a microbatch of `number` typical decodes."""
        return StepWork(
            num_tokens=number,
            num_decodes=number,
            decode_context=-(-number * self.decode_context // max(1, self.num_decodes)),
            num_sequences=number,
            num_sampled=number,
        )


@dataclass(frozen=True, slots=True)
class CycleLimits:
    """Limits of a cycle: seconds from token to token, and rows of one microbatch.

    With `prompts_urgent`, chunks are as long as the limits allow.

    `prompt_cost_weight`, from 0 to 1, weighs a low cost of prompt tokens for other sequences
    against their throughput. In the long run the number of prompt tokens per decode is fixed, and
    running sequences end sooner with shorter cycles: prompt tokens are best computed where each
    lengthens its cycle least.
    """

    seconds: float
    max_step_tokens: int
    prompts_urgent: bool = False
    prompt_cost_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class PromptBacklog:
    """The prompts with slot and memory: their tokens, and the mean position of one.

    The rates are the prompt tokens per second with which all meet their TTFT deadlines.
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
    """The time of a cycle with which nine in ten sequences keep their time per token.

    A sequence ahead of its target may take longer for a while, one behind has to catch up. Without
    decodes the time is unlimited.

    A single decode in an empty pipeline takes `lone_seconds`. A target below that cannot be met
    by any chunk, so it is ignored; without another, throughput decides.
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
    """The used share of the KV cache, or more if prompts need little of the available `rate`."""
    used = 1.0 - view.num_blocks_free / view.limits.num_blocks
    return max(used, 1.0 - prompts.rate_all / (EASY_SHARE * rate))


def prompt_backlog(view: SchedulerView) -> PromptBacklog:
    """The prompts to compute now: started ones, and waiting ones with slot and memory.

    Prompts that wait for memory gain nothing from longer chunks; a shorter cycle ends the running
    sequences sooner.
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
    """The load of the next cycle."""
    sample = _sample(view)
    mean_context = sum(each.num_sent for each in sample) / len(sample) if sample else 0.0
    return CycleLoad(
        num_decodes=view.num_decoding,
        decode_context=int(mean_context * view.num_decoding),
        num_prompt_tokens=prompts.num_tokens,
        prompt_context=prompts.context,
    )
