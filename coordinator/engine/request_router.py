"""Owns which replica runs which request, from its admission to its end.

A request is with exactly one engine at any time: it is moved when its replica ends or drains, and
when one that begins has room for what waits elsewhere. The choice itself is the scheduler package's
`routing`; what happens to a request within a replica is the engine's.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from coordinator.engine.engine import Engine
from coordinator.engine.step_loop import Clock
from coordinator.output.choice_stream import Generation
from runtime.errors import (
    QueueFullError,
    RequestCancelledError,
    StagemeshError,
    TooManyLogprobsError,
)
from runtime.metrics.declarations import CoordinatorMetrics
from scheduler import (
    PrefixMemory,
    ReplicaLoad,
    SchedulerLimits,
    SequenceRequest,
    choose_replica,
    work_of,
)

# Log-probabilities that one step may have to report: its result stays far below the 16 MiB of a
# message, and turning it over takes the event loop a fraction of a second.
MAX_LOGPROBS_PER_STEP: Final = 1 << 18


class RequestRouter:
    """All requests of a coordinator, over the engines of its replicas, in the order of these."""

    def __init__(
        self,
        engines: Sequence[Engine],
        max_waiting: int,
        metrics: CoordinatorMetrics,
        clock: Clock = time.monotonic,
    ) -> None:
        self.engines = engines
        self.clock = clock
        self._max_waiting = max_waiting
        self._metrics = metrics
        self._prefixes = PrefixMemory()
        self._refusal: StagemeshError | None = None
        for engine in engines:
            engine.on_change = self._settle

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return sum(engine.num_running for engine in self.engines)

    @property
    def num_waiting(self) -> int:
        """Sequences in line, also while no replica serves."""
        return sum(engine.num_waiting for engine in self.engines)

    @property
    def num_requests(self) -> int:
        """Prompts that are not finished."""
        return sum(engine.num_requests for engine in self.engines)

    @property
    def limits(self) -> SchedulerLimits | None:
        """Those of the replica that takes the longest sequences; None before the first epoch."""
        known = [engine.limits for engine in self.engines if engine.limits is not None]
        return max(known, key=lambda limits: limits.max_model_len, default=None)

    def submit(self, generations: Sequence[Generation]) -> None:
        """Puts the prompts of one request in line: all of them, or none and an error.

        Raises `QueueFullError`, `TooManyLogprobsError`, and whatever `refuse` was told.
        """
        if self._refusal is not None:
            # Raised over and over: its traceback, and the frames in it, must not pile up.
            raise self._refusal.with_traceback(None)
        num_generating = sum(each.is_computed for each in generations)
        if self.num_waiting + num_generating > self._max_waiting:
            num_too_many = self.num_waiting + num_generating - self._max_waiting
            raise QueueFullError(
                num_waiting=self.num_waiting,
                limit=self._max_waiting,
                wait_seconds=self._wait_seconds(num_too_many),
            )
        self._check_logprobs(generations)
        router = _Router(self.engines, self._prefixes)
        for generation in generations:
            self._metrics.prompt_tokens.inc(len(generation.request.prompt_ids))
            router.choose(generation.request).add(generation)

    def cancel(
        self, generations: Sequence[Generation], code: str = RequestCancelledError.code
    ) -> int:
        """Drops what is not finished, and counts it; slots and blocks go with the next step."""
        return sum(engine.cancel(generations, code) for engine in self.engines)

    def refuse(self, error: StagemeshError) -> None:
        """Takes no more requests: from now on `submit` raises `error`."""
        self._refusal = error

    def fail_all(self, error: StagemeshError) -> None:
        """Ends every request with `error`."""
        for engine in self.engines:
            engine.fail_all(error)

    async def drained(self) -> None:
        """Returns once no request is left."""
        while self.num_requests:
            for engine in self.engines:
                await engine.drained()

    def _wait_seconds(self, num_too_many: int) -> int:
        """When so many will have left the lines, if each gets shorter as it did lately."""
        num_each = -(-num_too_many // len(self.engines))
        now = self.clock()
        return min(engine.queue.wait_seconds(num_each, now) for engine in self.engines)

    def _check_logprobs(self, generations: Iterable[Generation]) -> None:
        num_logprobs = sum(each.request.sampling.num_logprobs for each in generations)
        num_others = sum(engine.num_logprobs for engine in self.engines)
        if num_logprobs and num_logprobs + num_others > MAX_LOGPROBS_PER_STEP:
            raise TooManyLogprobsError(
                num_logprobs=num_logprobs, num_others=num_others, limit=MAX_LOGPROBS_PER_STEP
            )

    def _settle(self, changed: Engine) -> None:
        """Moves requests to replicas that run them: from those that do not, oldest first.

        A replica that begins also gets its part of what waits at the others.
        """
        if not changed.is_serving:
            self._prefixes.forget(changed.replica)
        if not any(engine.takes_requests for engine in self.engines):
            return
        leaving: list[tuple[Generation, Engine]] = []
        for engine in self.engines:
            if not engine.takes_requests:
                leaving += [(each, engine) for each in engine.unfinished()]
            elif changed.takes_requests and engine is not changed:
                leaving += [(each, engine) for each in engine.unfinished(only_waiting=True)]
        handovers = [
            engine.withdraw(each)
            for each, engine in sorted(leaving, key=lambda pair: pair[0].sequence_id)
        ]
        router = _Router(self.engines, self._prefixes)
        for handover in handovers:
            request, num_generated = handover.generation.request, len(handover.token_ids)
            router.choose(request, num_generated).adopt(handover)


class _Router:
    """Chooses engines for several sequences in a row, as loaded as the first ones leave them."""

    def __init__(self, engines: Sequence[Engine], prefixes: PrefixMemory) -> None:
        self._engines = engines
        self._prefixes = prefixes
        is_choice = len(engines) > 1
        self._loads: list[ReplicaLoad] = [each.load() for each in engines] if is_choice else []

    def choose(self, request: SequenceRequest, num_generated: int = 0) -> Engine:
        """The engine for a sequence with so many tokens; while none serves, the one with fewest."""
        work = work_of(request, num_generated)
        num_kept = self._prefixes.num_kept(request.prompt_ids, request.cache_salt)
        replica = choose_replica(self._loads, work, num_kept)
        if replica is None:
            return min(self._engines, key=lambda engine: engine.num_requests)
        self._prefixes.note(request.prompt_ids, replica, request.cache_salt)
        load = self._loads[replica]
        self._loads[replica] = replace(
            load,
            num_tokens_owed=load.num_tokens_owed + work.num_tokens,
            num_blocks_free=load.num_blocks_free - -(-work.num_tokens // load.block_size),
        )
        return self._engines[replica]
