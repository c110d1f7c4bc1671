"""Owns the line that says now and then what the coordinator does; silent while that is nothing."""

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
    """Never returns: logs a line for every interval in which there was something to do."""
    before = _totals(coordinator)
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        now = _totals(coordinator)
        log_summary(coordinator, before, now)
        before = now


def log_summary(coordinator: Coordinator, before: Totals, now: Totals) -> None:
    """One line about the time between two sums, unless nothing ran in it and nothing runs."""
    router = coordinator.router
    num_generated = now.num_generated_tokens - before.num_generated_tokens
    num_prompt = now.num_prompt_tokens - before.num_prompt_tokens
    if not (num_generated or num_prompt or router.num_requests):
        return
    engines = router.engines
    num_blocks = sum(engine.num_blocks for engine in engines)
    _log.info(
        "summary",
        running=router.num_running,
        waiting=router.num_waiting,
        tokens_per_second=round(num_generated / INTERVAL_SECONDS, 1),
        prompt_tokens_per_second=round(num_prompt / INTERVAL_SECONDS, 1),
        steps_in_flight=sum(engine.num_steps_in_flight for engine in engines),
        kv_used=_percent(sum(engine.num_blocks_used for engine in engines), num_blocks),
        bubble=_bubble(before, now),
    )


def _totals(coordinator: Coordinator) -> Totals:
    engines = coordinator.router.engines
    stages = [stage for replica in coordinator.replicas for stage in replica.telemetry.totals]
    return Totals(
        num_prompt_tokens=sum(engine.num_prompt_tokens for engine in engines),
        num_generated_tokens=sum(engine.num_generated_tokens for engine in engines),
        compute_seconds=sum(stage.compute_seconds for stage in stages),
        idle_seconds=sum(stage.idle_seconds for stage in stages),
    )


def _bubble(before: Totals, now: Totals) -> str:
    """The idle share of the stages' time; of the whole epoch where a new one began meanwhile."""
    since = before if now.compute_seconds >= before.compute_seconds else Totals()
    idle = max(0.0, now.idle_seconds - since.idle_seconds)
    return _percent(idle, idle + now.compute_seconds - since.compute_seconds)


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"
