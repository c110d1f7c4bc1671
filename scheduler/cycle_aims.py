"""What `adaptive` aims at in its next cycle: how long it may be, and what there is to do.

Read off the scheduler's view and the clients' targets; nothing here keeps state or predicts.
"""

import math
from collections.abc import Sequence

from scheduler.cycle_plan import CycleLoad
from scheduler.policy import SchedulerView, SequenceView

HORIZON_TOKENS = 8
"""Time that a sequence is ahead of its target, or behind, is spent over so many tokens."""
MIN_STRETCH, MAX_STRETCH = 0.6, 2.0
"""Bounds of a cycle, in targets, that being behind or ahead can lead to."""
MAX_SAMPLE = 128
"""So many decodes, evenly spaced, stand for all that are ready."""
EASY_MEMORY, MIN_RELIEF = 0.5, 0.5
"""From so full a cache on the cycle gets shorter, down to this share of it when all is taken."""


def cycle_seconds(
    view: SchedulerView, common: float | None, slack: float, lone_seconds: float = 0.0
) -> float:
    """How long a cycle may be, so that nine in ten sequences keep their time per token.

    A sequence that is ahead of its target may take longer for a while, one that is behind
    has to catch up. Where memory runs short, a shorter cycle pays: what runs ends sooner. While
    nothing decodes, nobody waits for a cycle's end, and it may take any time.

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
        return aim * _relief(view)
    tightest = sorted(allowed)[len(allowed) // 10] * (1.0 - slack)
    return min(MAX_STRETCH * aim, max(MIN_STRETCH * aim, tightest)) * _relief(view)


def _sample(view: SchedulerView) -> Sequence[SequenceView]:
    return view.ready[:: -(-len(view.ready) // MAX_SAMPLE) or 1]


def memory_shortage(view: SchedulerView) -> float:
    """From 0, where the cache is half empty, to 1, where it is full."""
    used = 1.0 - view.num_blocks_free / view.limits.num_blocks
    return max(0.0, (used - EASY_MEMORY) / (1.0 - EASY_MEMORY))


def _relief(view: SchedulerView) -> float:
    """The share of a cycle that is left to it when memory runs short."""
    return 1.0 - (1.0 - MIN_RELIEF) * memory_shortage(view)


def needed_rate(view: SchedulerView) -> float:
    """Prompt tokens a second that bring those in line their first token in time, if they can be.

    Only prompts whose client said when count, and only until it is too late.
    """
    rate, num_tokens = 0.0, 0
    for sequence in (*view.prefilling, *view.waiting[: view.num_admissible]):
        num_tokens += sequence.num_unsent
        if sequence.request.ttft_target_seconds is not None:
            left = sequence.request.first_token_due - view.now
            rate = max(rate, num_tokens / left) if left > 0.0 else rate
    return rate


def load_of(view: SchedulerView) -> CycleLoad:
    """What there is to do now: of those that wait only who finds slot and memory.

    While memory is what they wait for, longer chunks bring nothing, and a shorter cycle ends the
    running ones sooner.
    """
    sample = _sample(view)
    mean_context = sum(each.num_sent for each in sample) / len(sample) if sample else 0.0
    num_prompt_tokens, moments = 0, 0.0
    for sequence in (*view.prefilling, *view.waiting[: view.num_admissible]):
        num_unsent = sequence.num_unsent
        num_prompt_tokens += num_unsent
        moments += num_unsent * (sequence.num_sent + num_unsent / 2)
    return CycleLoad(
        num_decodes=view.num_decoding,
        decode_context=int(mean_context * view.num_decoding),
        num_prompt_tokens=num_prompt_tokens,
        prompt_context=moments / num_prompt_tokens if num_prompt_tokens else 0.0,
    )
