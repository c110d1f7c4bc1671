"""Assigns requests to engines, and moves them when a replica starts or stops serving.

Each request belongs to exactly one engine. `scheduler.routing` chooses the replica; the engine runs
the request.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from coordinator.engine.engine import Engine
from coordinator.engine.outputs import EngineStats
from coordinator.engine.step_loop import Clock
from runtime.errors import (
    QueueFullError,
    StagemeshError,
    TooManyLogprobsError,
)
from scheduler import (
    PrefixMemory,
    ReplicaLoad,
    SchedulerLimits,
    SequenceRequest,
    choose_replica,
    work_of,
)

# Log-probabilities of one step, at most: its result stays far below the message limit of 16 MiB,
# and processing it takes the event loop a fraction of a second.
MAX_LOGPROBS_PER_STEP: Final = 1 << 18


class RequestRouter:
    """Routes all requests of a coordinator; `engines` are ordered by replica."""

    def __init__(
        self,
        engines: Sequence[Engine],
        max_waiting: int,
        clock: Clock = time.monotonic,
    ) -> None:
        self.engines = engines
        self.clock = clock
        self._max_waiting = max_waiting
        self._prefixes = PrefixMemory()
        self._refusal: StagemeshError | None = None
        for engine in engines:
            engine.on_change = self._rebalance

    def stats(self) -> EngineStats:
        """The sums over all replicas."""
        return EngineStats.total(engine.stats() for engine in self.engines)

    @property
    def limits(self) -> SchedulerLimits | None:
        """The limits of the replica with the largest context; None before the first epoch."""
        known = [engine.limits for engine in self.engines if engine.limits is not None]
        return max(known, key=lambda limits: limits.max_model_len, default=None)

    def check_accepts(self, requests: Sequence[SequenceRequest]) -> None:
        """Raises if `requests` cannot be enqueued now, none or all of them.

        Raises `QueueFullError`, `TooManyLogprobsError` and the error of `refuse`.
        """
        if self._refusal is not None:
            # Raised again and again: without a reset its traceback would grow.
            raise self._refusal.with_traceback(None)
        stats = self.stats()
        num_excess = stats.num_waiting + len(requests) - self._max_waiting
        if num_excess > 0:
            raise QueueFullError(
                num_waiting=stats.num_waiting,
                limit=self._max_waiting,
                wait_seconds=self._wait_seconds(num_excess),
            )
        num_logprobs = sum(each.sampling.num_logprobs for each in requests)
        if num_logprobs and num_logprobs + stats.num_logprobs > MAX_LOGPROBS_PER_STEP:
            raise TooManyLogprobsError(
                num_logprobs=num_logprobs,
                num_others=stats.num_logprobs,
                limit=MAX_LOGPROBS_PER_STEP,
            )

    def enqueue(self, requests: Sequence[SequenceRequest]) -> None:
        """Assigns requests that `check_accepts` accepted to engines."""
        chooser = _EngineChooser(self.engines, self._prefixes)
        for request in requests:
            chooser.choose(request).add(request)

    def cancel(self, sequence_ids: Sequence[int]) -> None:
        """Drops the requests that are unfinished; the next steps release their slots and blocks."""
        for engine in self.engines:
            engine.cancel(sequence_ids)

    def refuse(self, error: StagemeshError) -> None:
        """Accepts no more requests: `check_accepts` raises `error` from now on."""
        self._refusal = error

    def fail_all(self, error: StagemeshError) -> None:
        """Ends every request with `error`."""
        for engine in self.engines:
            engine.fail_all(error)

    async def drained(self) -> None:
        """Returns once no request is left."""
        while self.stats().num_requests:
            for engine in self.engines:
                await engine.drained()

    def _wait_seconds(self, num_requests: int) -> int:
        """Seconds until `num_requests` have left the queues, at their latest rates."""
        num_each = -(-num_requests // len(self.engines))
        now = self.clock()
        return min(engine.queue_forecast.wait_seconds(num_each, now) for engine in self.engines)

    def _rebalance(self, changed: Engine) -> None:
        """Moves the requests of engines that do not serve to those that do, oldest first.

        An engine that starts to serve also gets a share of the requests that wait at the others.
        """
        if not changed.is_serving:
            self._prefixes.forget(changed.replica)
        if not any(engine.takes_requests for engine in self.engines):
            return
        leaving: list[tuple[int, Engine]] = []
        for engine in self.engines:
            if not engine.takes_requests:
                leaving += [(each.sequence_id, engine) for each in engine.unfinished()]
            elif changed.takes_requests and engine is not changed:
                waiting = engine.unfinished(only_waiting=True)
                leaving += [(each.sequence_id, engine) for each in waiting]
        leaving.sort(key=lambda pair: pair[0])
        handovers = [engine.withdraw(sequence_id) for sequence_id, engine in leaving]
        chooser = _EngineChooser(self.engines, self._prefixes)
        for handover in handovers:
            chooser.choose(handover.request, len(handover.token_ids)).adopt(handover)


class _EngineChooser:
    """Chooses engines for several sequences; each adds to the load that the next one sees."""

    def __init__(self, engines: Sequence[Engine], prefixes: PrefixMemory) -> None:
        self._engines = engines
        self._prefixes = prefixes
        is_choice = len(engines) > 1
        self._loads: list[ReplicaLoad] = [each.load() for each in engines] if is_choice else []

    def choose(self, request: SequenceRequest, num_generated: int = 0) -> Engine:
        """The engine for a sequence with `num_generated` tokens.

        While no engine serves, the one with the fewest requests.
        """
        work = work_of(request, num_generated)
        num_kept = self._prefixes.num_kept(request.prompt_ids, request.cache_salt)
        replica = choose_replica(self._loads, work, num_kept)
        if replica is None:
            return min(self._engines, key=lambda engine: engine.stats().num_requests)
        self._prefixes.note(request.prompt_ids, replica, request.cache_salt)
        load = self._loads[replica]
        self._loads[replica] = replace(
            load,
            num_tokens_owed=load.num_tokens_owed + work.num_tokens,
            num_blocks_free=load.num_blocks_free - -(-work.num_tokens // load.block_size),
        )
        return self._engines[replica]
