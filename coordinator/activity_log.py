"""Logs a summary of the coordinator's activity at intervals; nothing while it is idle."""

import asyncio
from dataclasses import dataclass
from typing import Final, Never

from coordinator.coordinator import Coordinator
from runtime.host.logs import get_logger

INTERVAL_SECONDS: Final = 10.0

_log = get_logger()


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all replicas: tokens since the start, stage seconds of the running epochs."""

    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    compute_seconds: float = 0.0
    idle_seconds: float = 0.0


async def log_summaries(coordinator: Coordinator) -> Never:
    """Never returns: logs a summary of every interval with activity."""
    before = _totals(coordinator)
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        now = _totals(coordinator)
        log_summary(coordinator, before, now)
        before = now


def log_summary(coordinator: Coordinator, before: Totals, now: Totals) -> None:
    """Logs the activity between two sums, unless there was none and no request is unfinished."""
    stats = coordinator.router.stats()
    num_generated = now.num_generated_tokens - before.num_generated_tokens
    num_prompt = now.num_prompt_tokens - before.num_prompt_tokens
    if not (num_generated or num_prompt or stats.num_requests):
        return
    _log.info(
        "summary",
        running=stats.num_running,
        waiting=stats.num_waiting,
        tokens_per_second=round(num_generated / INTERVAL_SECONDS, 1),
        prompt_tokens_per_second=round(num_prompt / INTERVAL_SECONDS, 1),
        steps_in_flight=stats.num_steps_in_flight,
        kv_used=_percent(stats.num_blocks_used, stats.num_blocks),
        bubble=_bubble(before, now),
    )


def _totals(coordinator: Coordinator) -> Totals:
    stats = coordinator.router.stats()
    stages = [stage for replica in coordinator.replicas for stage in replica.telemetry.totals]
    return Totals(
        num_prompt_tokens=stats.num_prompt_tokens,
        num_generated_tokens=stats.num_generated_tokens,
        compute_seconds=sum(stage.compute_seconds for stage in stages),
        idle_seconds=sum(stage.idle_seconds for stage in stages),
    )


def _bubble(before: Totals, now: Totals) -> str:
    """The idle share of the stages' time; of the new epoch alone if one began in between."""
    since = before if now.compute_seconds >= before.compute_seconds else Totals()
    idle = max(0.0, now.idle_seconds - since.idle_seconds)
    return _percent(idle, idle + now.compute_seconds - since.compute_seconds)


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"
